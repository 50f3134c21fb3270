"""A refusal is a sentence and a hint."""

from graph.formats.refused import Refused


def test_a_refusal_says_what_is_wrong_and_what_to_do():
    refused = Refused("Row 3 has no logprobs.", hint="Ask the engine for them.")
    assert isinstance(refused, ValueError)
    assert (str(refused), refused.hint) == ("Row 3 has no logprobs.", "Ask the engine for them.")
