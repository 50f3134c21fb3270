"""What is true of every format that trainers read: each trainable token once, where the engine drew it."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

from capture.formats import FORMATS
from graph.formats.refused import Refused
from graph.graph import read
from graph.records import Rollout, Weights
from graph.sequences import ROLES, Options, cut
from tests.graph.formats.readback import NAMES, Read, dealt, heat, mark, module, of_mark, read_back, told, whole, wire
from tests.graph.tape import Tape, assistant, user
from tests.graph.told import Story, canonical

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
REALIGNED = [name for name in NAMES if "realign" in module(name).DRIFTS]


def exported(name, graph, **options):
    return wire(module(name).to_json(graph, cut(graph, Options(**options))))


@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
@given(told())
def test_every_trainable_token_is_trained_once_with_its_logprob_behind_the_prefix_it_was_drawn_from(story):
    graph = read(story.rollout, story.calls)
    note(repr(story))
    note(repr(graph))
    sequences = cut(graph)
    for name in NAMES:
        note(name)
        rows = read_back(name, wire(module(name).to_json(graph, sequences)))
        assert sorted(of_mark(logprob) for row in rows for logprob in row.trained.values()) == sorted(dealt(story))
        for row in rows:
            # The ids are the engine's own, of the last call: what it was given, and what it gave.
            last = row.about["call"] if name == "openenv" else row.about["calls"][-1]
            assert row.ids == whole(story.calls[last])
            drawn_here(row, story)


@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
@given(told(), st.sampled_from([2, 1024]))
def test_rows_that_cross_drifts_train_every_token_once_behind_the_prefix_it_was_drawn_from(story, threshold):
    graph = read(story.rollout, story.calls)
    note(repr(story))
    sequences = cut(graph, Options(drift="realign", threshold=threshold))
    for name in REALIGNED:
        note(name)
        rows = read_back(name, wire(module(name).to_json(graph, sequences)))
        assert sorted(of_mark(logprob) for row in rows for logprob in row.trained.values()) == sorted(dealt(story))
        for row in rows:
            drawn_here(row, story)


@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
@given(told(wild=True))
def test_whatever_agents_do_each_call_is_trained_once_or_left_out(story):
    graph = read(story.rollout, story.calls)
    note(repr(graph))
    sequences = cut(graph, Options(roles=ROLES))
    left_out = {left.call for left in sequences.left_out}
    due = sorted((call.n, at) for call in story.calls if call.n not in left_out for at in range(len(call.sampled_ids)))
    for name in NAMES:
        note(name)
        if not due:
            with pytest.raises(Refused, match="nothing to train"):
                module(name).to_json(graph, sequences)
            continue
        rows = read_back(name, wire(module(name).to_json(graph, sequences)))
        assert sorted(of_mark(logprob) for row in rows for logprob in row.trained.values()) == due
        for row in rows:
            drawn_here(row, story)


def drawn_here(row: Read, story: Story) -> None:
    """Each trained token of a row has its own logprob, and stands behind the tokens that the engine drew it behind."""
    for place, logprob in row.trained.items():
        n, at = of_mark(logprob)
        assert logprob == mark(n, at)
        call = story.calls[n]
        assert row.ids[: place + 1] == whole(call)[: len(call.prompt_ids) + at + 1]


@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
@given(told(wild=True), st.randoms(use_true_random=False))
def test_the_order_in_which_records_come_changes_nothing(story, random):
    shuffled = list(story.calls)
    random.shuffle(shuffled)
    graphs = [read(story.rollout, calls) for calls in (story.calls, shuffled)]
    cuts = [cut(graph, Options(roles=ROLES)) for graph in graphs]
    assume(cuts[0].sequences)
    for name in NAMES:
        one, other = (
            wire(module(name).to_json(graph, sequences)) for graph, sequences in zip(graphs, cuts, strict=True)
        )
        assert one == other, name


@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
@given(told())
def test_each_row_says_whose_it_is_and_which_of_how_many(story):
    graph = read(story.rollout, story.calls)
    sequences = cut(graph, Options(roles=ROLES))
    for name in NAMES:
        note(name)
        by_row: dict[int, list[Read]] = {}
        for row in read_back(name, wire(module(name).to_json(graph, sequences))):
            by_row.setdefault(row.about["row"], []).append(row)
        assert list(by_row) == list(range(len(by_row)))
        trained = {number: sum(len(row.trained) for row in same) for number, same in by_row.items()}
        for number, same in by_row.items():
            ns = {of_mark(logprob)[0] for row in same for logprob in row.trained.values()}
            for row in same:
                about = row.about
                assert (about["rollout"], about["group"], about["reward"], about["final"]) == ("g-3", "g", 0.25, True)
                assert about["n_rows"] == len(by_row)
                assert about["n_trained_tokens"] == trained[number]
                assert about["n_rollout_trained_tokens"] == sum(trained.values())
                assert set(about["trained"]) == ns
                assert set(about["weight_versions"]) == {str(n + 1) for n in ns}
                assert about["temperature"] == (heat(next(iter(ns))) if len(ns) == 1 else None)
                assert (about["truncated"], about["ended"]) == (False, "stop")
                assert about["aborted"] == []


# -- one rollout, in every format -------------------------------------------------------------------------------------


def tape(**rollout) -> Tape:
    """A reply, another that was cut by length, and what the agent did not have of a third."""
    made = Tape(**{"group": "g", "reward": 0.5} | rollout)
    weights = Weights(start="7", end="7")
    told = [user("Go")]
    made.say(told, assistant("Gone."), weights=weights)
    told += [assistant("Gone."), user("Back")]
    made.say(told, assistant("Not yet"), weights=weights, finish_reason="length")
    return made


def about(name: str, made: Tape, **options):
    return read_back(name, exported(name, made.graph(), **options))[-1].about


@pytest.mark.parametrize("name", NAMES)
def test_a_row_that_was_cut_short_says_so(name):
    said = about(name, tape())
    assert (said["truncated"], said["ended"], said["finish_reason"]) == ("length", "length", "length")


@pytest.mark.parametrize("name", NAMES)
def test_a_row_with_a_broken_reply_says_so(name):
    made = tape()
    made.calls[1] = msgspec.structs.replace(made.calls[1], status="aborted", delivered=False, finish_reason=None)
    said = about(name, made)
    assert (said["trained"], said["aborted"], said["ended"]) == ([0], [], "stop")
    said = about(name, made, aborted="train")
    assert (said["trained"], said["aborted"], said["ended"]) == ([0, 1], [1], "abort")


@pytest.mark.parametrize("name", NAMES)
def test_an_open_rollout_s_rows_are_not_final(name):
    assert about(name, tape(state="open"))["final"] is False


@pytest.mark.parametrize("name", NAMES)
def test_temperatures_that_differ_are_none(name):
    made = tape()
    made.calls[1] = msgspec.structs.replace(made.calls[1], sampling_sent={"temperature": 0.5})
    assert about(name, made)["temperature"] is None


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("skyrl", "areal")])
def test_ungraded_is_none_and_never_zero(name):
    made = tape(reward=None)
    form = exported(name, made.graph())
    assert all(row.about["reward"] is None for row in read_back(name, form))
    if name != "openenv":
        assert form["reward"] is None


@pytest.mark.parametrize("name", NAMES)
def test_a_reward_of_zero_is_one(name):
    assert about(name, tape(reward=0.0))["reward"] == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_a_rollout_with_nothing_to_train_is_refused_with_the_reasons(name):
    made = Tape(reward=1.0)
    made.say([user("Go")], assistant("Gone."), logprobs=None)
    made.say([user("Go"), assistant("Gone."), user("Back")], assistant("Half"), status="aborted", delivered=False)
    with pytest.raises(Refused, match=r"Rollout r has nothing to train: aborted, no_logprobs\.") as refused:
        exported(name, made.graph())
    assert "docs/findings.md" in refused.value.hint


@pytest.mark.parametrize("name", NAMES)
def test_a_rollout_without_calls_is_refused(name):
    with pytest.raises(Refused, match="has no calls"):
        exported(name, read(Rollout(id="r", reward=1.0), []))


def pictured(call):
    """The record of a call, had its user shown a picture too."""
    url = {"url": "data:image/png;base64,iVBORw0KGgo="}
    shown = {"role": "user", "content": [{"type": "text", "text": "Look"}, {"type": "image_url", "image_url": url}]}
    return msgspec.structs.replace(call, messages=(*call.messages[:-1], canonical(shown)))


@pytest.mark.parametrize("name", NAMES)
def test_a_row_with_media_is_left_out_and_said_to_be(name):
    made = tape()
    made.say([user("Look")], assistant("A cat."), weights=Weights(start="7", end="7"))
    made.calls[2] = pictured(made.calls[2])
    form = exported(name, made.graph(), roles=ROLES)
    rows = read_back(name, form)
    assert {n for row in rows for n in row.about["trained"]} == {0, 1}
    assert {(row.about["row"], row.about["n_rows"]) for row in rows} == {(0, 1)}
    left_out = form["turns"][0]["metadata"]["treering"]["left_out"] if name == "openenv" else form["left_out"]
    (digest,) = made.calls[2].messages[-1].media
    assert {"call": 2, "reason": "media", "media": [digest]} in left_out


@pytest.mark.parametrize("name", NAMES)
def test_a_rollout_of_rows_with_media_alone_is_refused(name):
    made = Tape(reward=1.0)
    made.say([user("Look")], assistant("A cat."))
    made.calls[0] = pictured(made.calls[0])
    with pytest.raises(Refused, match="Rollout r has no row without media: calls 0 are all that could be trained"):
        exported(name, made.graph())


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_prompt_is_refused(name):
    """Its first token was drawn under no prefix, and every trainer drops it in silence."""
    made = Tape(reward=1.0)
    made.say([user("Go")], assistant("Gone."), prompt_ids=np.empty(0, np.int32), usage_prompt=0)
    with pytest.raises(Refused, match="call 0 has an empty prompt"):
        exported(name, made.graph())


@pytest.mark.parametrize("name", NAMES)
def test_a_logprob_of_zero_that_the_engine_gave_is_trained(name):
    """Probability 1: template tokens of a grammar. What is not trained is told by the mask, not by the logprob."""
    made = tape()
    logprobs = np.array([0.0, -0.5, 0.0], np.float32)
    made.calls[0] = msgspec.structs.replace(made.calls[0], logprobs=logprobs)
    first = read_back(name, exported(name, made.graph()))[0]
    assert list(first.trained.values())[:3] == [0.0, -0.5, 0.0]


# -- the table --------------------------------------------------------------------------------------------------------


def test_the_documentation_has_a_row_for_each_format_and_for_no_other():
    text = (Path(__file__).parents[3] / "docs" / "formats.md").read_text()
    table = text.partition("## The formats")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("| `")]
    assert sorted(row[0].strip(" `") for row in rows) == sorted(FORMATS)
    assert all(len(row) == 6 for row in rows)


@pytest.mark.parametrize("name", NAMES)
def test_a_format_offers_the_drifts_that_its_module_takes(name):
    assert FORMATS[name].drifts == module(name).DRIFTS


@pytest.mark.parametrize("name", NAMES)
def test_a_format_that_needs_a_reward_refuses_by_itself(name):
    made = tape(reward=None)
    if FORMATS[name].needs_reward:
        with pytest.raises(Refused, match="is not graded"):
            exported(name, made.graph())
    else:
        assert exported(name, made.graph())


def test_what_goes_along_is_documented():
    text = (Path(__file__).parents[3] / "docs" / "formats.md").read_text()
    table = text.partition("## What goes along with every row")[2].partition("\n## ")[0]
    named = {each for line in table.splitlines() for each in line.split("|")[1:2] for each in each.split("`")[1::2]}
    assert named == set(about("verl", tape()))
