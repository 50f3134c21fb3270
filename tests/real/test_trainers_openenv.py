"""OpenEnv's own `TrainingTrace` takes `format=openenv`, and refuses it broken."""

import copy
from typing import Any

import pytest

from tests.real import library
from tests.real.captured import Captured
from tests.real.handmade import Made, drawn, native

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


def broken(trace: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return a trace with one fault each."""

    def with_turn(**fields: Any) -> dict[str, Any]:
        other = copy.deepcopy(trace)
        other["turns"][0] |= fields
        return other

    first = trace["turns"][0]
    prompt = first["prompt_token_ids"]
    return {
        "a mask that is short": with_turn(loss_mask=first["loss_mask"][1:]),
        "a trained prompt": with_turn(loss_mask=[1] * len(first["loss_mask"])),
        "a logprob too few": with_turn(per_token_logps=first["per_token_logps"][1:]),
        "a logprob above 0": with_turn(per_token_logps=[0.5, *first["per_token_logps"][1:]]),
        "a negative id": with_turn(prompt_token_ids=[-1, *prompt[1:]]),
        "no prompt": with_turn(prompt_token_ids=[], loss_mask=first["loss_mask"][len(prompt) :]),
        "a key of ours": with_turn(reward=1.0),
        "a turn twice": {**trace, "turns": [first, first]},
    }


def test_it_takes_what_was_made_by_hand(made: list[Made], tmp_path):
    case = {"traces": [one.form("openenv") for one in made], "broken": broken(made[0].form("openenv"))}
    report = library.ask("openenv", "read_openenv.py", case, tmp_path)
    for one, found in zip(made, report["traces"], strict=True):
        assert drawn(found["rows"]) == drawn(native(one.form("native"))), one.name
        assert found["again"] == found["rows"], "entries and back"
    assert all(report["broken"].values()), "each fault is refused"


@pytest.mark.parametrize("vllm", ["sharp"], indirect=True)
def test_it_takes_what_was_captured(captured: list[Captured], tmp_path):
    case = {"traces": [one.forms["openenv"] for one in captured], "broken": {}}
    report = library.ask("openenv", "read_openenv.py", case, tmp_path)
    for one, found in zip(captured, report["traces"], strict=True):
        assert drawn(found["rows"]) == drawn(native(one.forms["native"]))
        ids = {call["n"]: call["id"] for call in one.calls}
        assert [row["node"] for row in found["rows"]] == [ids[n] for n in one.trained]
