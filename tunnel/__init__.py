"""Tunnels: what makes a listener reachable from another machine. Imports neither `capture` nor `graph`."""
