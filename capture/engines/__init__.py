"""Engines: what to inject, where ids and logprobs are, how to count, and who it is; one file a kind."""
