"""Built-in conversations, played to an engine so that a person sees before a run whether model and template chain.

`scenarios` are scripts of an agent's side, sans-I/O; `play` has them with an engine, through an appliance of its own.
"""
