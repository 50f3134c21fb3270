"""Pinned prefixes: a call's prompt is its parent's prompt and sampled ids, exactly, and what is new behind them.

Nothing is tokenised here. The engine renders messages to ids (`Ask`s of an adapter), and what is new is cut from its
own rendering at a message's border. `plan` is the algorithm, `parents` finds whom a call goes on from, `fallback` names
why a call goes the plain way; all three are sans-I/O.
"""
