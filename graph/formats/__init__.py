"""Formats: one file a trainer, each a pure function of `graph.sequences.Sequences`."""
