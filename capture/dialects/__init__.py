"""Dialects: the API shapes that agents speak, one file each, sans-I/O."""
