"""Treering as trainers' own classes know such a thing: one module a library, which it imports. Import the module."""
