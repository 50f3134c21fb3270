"""`format=prime-rl` goes through msgspec as prime-rl's own struct, to bytes and back.

prime-rl brings vLLM and CUDA, so its struct is restated: prime-rl 0.8.0 at commit 559b44772,
`src/prime_rl/transports/rollouts/types.py` (Apache-2.0), fields in their order, since its wire form is an array.
"""

from typing import Any

import msgspec
import pytest

from graph.formats.refused import Refused
from graph.sequences import Options, cut
from tests.real.captured import Captured
from tests.real.handmade import Made, drawn, native


class TrainingSample(msgspec.Struct, array_like=True, gc=False, omit_defaults=True):
    """What prime-rl's orchestrator sends its trainer for one row."""

    token_ids: list[int]
    mask: list[bool]
    logprobs: list[float]
    temperatures: list[float]
    env_name: str
    ref_logprobs: list[float] | None = None
    mm_kwargs: dict[str, Any] | None = None
    routed_experts: Any = None
    mm_token_type_ids: list[int] | None = None
    rl_weights: list[float] | None = None
    ce_weights: list[float] | None = None
    ref_kl_weights: list[float] | None = None
    advantages: list[float] | None = None


def read(form: dict[str, Any]) -> list[TrainingSample]:
    """Return a form's samples as the trainer has them: stamped with an advantage, over the wire, one length each."""
    found = []
    for row in form["rows"]:
        sample = row["sample"]
        sent = TrainingSample(**sample, advantages=[0.5 if on else 0.0 for on in sample["mask"]])
        got = msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=TrainingSample)
        lengths = {len(array) for array in (got.token_ids, got.mask, got.logprobs, got.temperatures, got.advantages)}
        assert len(lengths) == 1
        assert all(temperature > 0.0 for temperature in got.temperatures)
        found.append(got)
    return found


def check(form: dict[str, Any], sequences: dict[str, Any]) -> None:
    rows = [{"ids": one.token_ids, "mask": one.mask, "logprobs": one.logprobs} for one in read(form)]
    assert drawn(rows) == drawn(native(sequences))


def test_it_takes_what_was_made_by_hand(made: list[Made]):
    heated = [one for one in made if None not in heats(one)]
    assert len(heated) > len(made) / 2
    for one in heated:
        check(one.form("prime-rl"), one.form("native"))


def test_it_gets_nothing_without_a_temperature(made: list[Made]):
    cold = [one for one in made if None in heats(one)]
    assert cold
    for one in cold:
        with pytest.raises(Refused, match="temperature"):
            one.form("prime-rl")


def heats(one: Made) -> set[float | None]:
    """Return the temperatures that a rollout's trained calls were seen to have."""
    rows = cut(one.graph, Options(roles=one.roles)).sequences
    return {one.graph.forest.calls[n].sampling_sent.get("temperature") for row in rows for n in row.trained}


@pytest.mark.real
@pytest.mark.timeout(900)
@pytest.mark.parametrize("vllm", ["sharp"], indirect=True)
def test_it_takes_what_was_captured(captured: list[Captured]):
    for one in captured:
        check(one.forms["prime-rl"], one.forms["native"])
        samples = [row["sample"] for row in one.forms["prime-rl"]["rows"]]
        assert {value for sample in samples for value in sample["temperatures"]} == {1.0}
