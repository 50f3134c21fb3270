"""Measurements: each prints a table and can write its rows as JSON.

corpus → upstream ─┐
corpus → load ─────┴─▶ systems → overhead → report. `graph` stands alone: it measures a data structure, not a process.
"""
