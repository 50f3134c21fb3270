"""What sequences may be asked for; the forms themselves are tests/graph's."""

import pytest

from capture.errors import ClientError
from capture.exports import ASKED, export, export_in, form
from capture.formats import FORMATS
from graph.formats.refused import Refused
from graph.sequences import DRIFTS, Options
from tests.graph.tape import Tape, assistant, user


@pytest.mark.parametrize(
    ("asked", "format_", "drift"),
    [
        ({}, "native", "split"),
        ({"drift": "realign"}, "native", "realign"),
        ({"drift": "tree"}, "tree", "tree"),
        ({"format": "tree"}, "tree", "tree"),
    ],
)
def test_a_format_and_what_it_does_at_a_drift_imply_each_other(asked, format_, drift):
    found = export(asked)
    assert (found.format, found.options) == (format_, Options(drift=drift))


def test_all_else_goes_into_the_options():
    asked = {"roles": ("main", "subagent"), "drift": "realign", "threshold": 7, "constrained": "train"}
    assert export(asked).options == Options(**asked)


def test_what_a_format_cannot_do_is_refused_by_name():
    with pytest.raises(ClientError, match="format=tree has no drift=split") as caught:
        export({"format": "tree", "drift": "split"})
    assert caught.value.status == 422


def test_a_body_has_the_options_as_json_values():
    body = {"roles": ["main", "summary"], "threshold": 7, "drift": "realign"}
    assert export_in(body).options == Options(roles=("main", "summary"), threshold=7, drift="realign")
    with pytest.raises(ClientError) as caught:
        export_in({"format": "native", "drift": "tree"})
    assert caught.value.code == "invalid_body"


def test_every_drift_has_a_format():
    assert {drift for each in FORMATS.values() for drift in each.drifts} == set(DRIFTS)


def test_an_unknown_format_names_the_nearest():
    with pytest.raises(ValueError, match=r"one of native, trl, .*; did you mean verifiers\?"):
        ASKED["format"]("verifier")
    with pytest.raises(ClientError, match="did you mean prime-rl") as caught:
        export_in({"format": "prime_rl"})
    assert caught.value.code == "invalid_body"
    with pytest.raises(ClientError, match=r"Unknown field sequences\.rolse; did you mean roles"):
        export_in({"rolse": "main"})


def test_a_close_s_answer_has_no_place_for_a_file():
    with pytest.raises(ClientError, match="no JSON") as caught:
        export_in({"format": "parquet"})
    assert "GET …/sequences?format=parquet" in caught.value.hint


def tape(**rollout):
    made = Tape(**{"reward": 1.0} | rollout)
    made.say([user("Go")], assistant("Gone."))
    return made


def test_an_open_rollout_is_refused_unless_it_is_meant():
    graph = tape(state="open").graph()
    with pytest.raises(ClientError, match="Rollout r is open") as caught:
        form(graph, export({}))
    assert (caught.value.code, caught.value.status) == ("rollout_open", 409)
    assert form(graph, export({}), opened=True)["final"] is False


# Formats whose empty form says by itself why; ATIF has the messages whatever else there is.
TELLS = {name for name, each in FORMATS.items() if each.tells}


@pytest.mark.parametrize("name", sorted(set(FORMATS) - TELLS))
@pytest.mark.parametrize(
    ("make", "code", "todo"),
    [
        (lambda: Tape(reward=1.0), "no_calls", "findings"),
        (lambda: text_only(), "text_only", "tier train"),
        (lambda: constrained(), "nothing_trainable", "constrained=train"),
    ],
    ids=["no calls", "text only", "nothing trainable"],
)
def test_no_format_gives_an_empty_list(name, make, code, todo):
    graph = make().graph()
    if FORMATS[name].takes_text and code != "no_calls":
        assert form(graph, export({"format": name}))
        return
    with pytest.raises(ClientError) as caught:
        form(graph, export({"format": name}))
    assert (caught.value.code, caught.value.status) == (code, 409)
    assert todo in caught.value.hint
    assert "Rollout r " in caught.value.message


@pytest.mark.parametrize("name", sorted(TELLS))
def test_the_forms_that_tell_say_so_beside_what_they_leave_out(name):
    empty = form(constrained().graph(), export({"format": name}))
    assert empty["empty"]["code"] == "nothing_trainable"
    assert empty["left_out"] == [{"call": 0, "reason": "constrained"}]
    assert "empty" not in form(tape().graph(), export({"format": name}))


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_ungraded_stays_ungraded(name):
    graph = tape(reward=None).graph()
    if not FORMATS[name].needs_reward:
        assert form(graph, export({"format": name}))
        return
    with pytest.raises(ClientError, match="no reward") as caught:
        form(graph, export({"format": name}))
    assert caught.value.code == "ungraded"


def test_what_a_format_refuses_says_so_in_its_words(monkeypatch):
    def refuse(graph, cut):
        raise Refused("Row 0 is too odd.", hint="Straighten it.")

    monkeypatch.setattr("graph.formats.parquet.to_json", refuse)
    with pytest.raises(ClientError, match="Row 0 is too odd") as caught:
        form(tape().graph(), export({"format": "parquet"}))
    assert (caught.value.code, caught.value.hint) == ("not_exportable", "Straighten it.")


def text_only():
    made = Tape(tier="eval", tier_reason="no token ids", reward=1.0)
    made.say([user("Go")], assistant("Gone."), prompt_ids=None, sampled_ids=None, logprobs=None)
    return made


def constrained():
    made = Tape(reward=1.0)
    made.say([user("Go")], assistant("Gone."), constrained=("guided_json",))
    return made
