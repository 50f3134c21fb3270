"""Harbor's agent context: what its library would take although it is broken, refused."""

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from graph.formats.harbor import check, to_json
from graph.formats.refused import Refused
from graph.graph import read
from graph.sequences import ROLES, Options, cut
from tests.graph.corpus import FOLDER, graph_of, load
from tests.graph.formats.captures import parted, turns
from tests.graph.formats.readback import dealt, of_mark, told, whole, wire

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


def context(graph, **options):
    return wire(to_json(graph, cut(graph, Options(**options))))


def test_a_turn_has_the_whole_prompt_and_what_was_sampled():
    made = context(turns().graph())
    (detail,) = made["rollout_details"]
    assert detail["prompt_token_ids"] == [[1, 2], [1, 2, 3, 4, 5, 6]]
    assert detail["completion_token_ids"] == [[3, 4], [7]]
    assert detail["logprobs"] == [[-0.25, -0.5], [-1.0]]
    assert detail["extra"]["weights"] == [
        [{"version": "7", "start": 0, "end": 2}],
        [{"version": "8", "start": 0, "end": 1}],
    ]
    assert {name: len(values) for name, values in detail["extra"].items()} == dict.fromkeys(detail["extra"], 2)
    assert (made["n_input_tokens"], made["n_output_tokens"]) == (8, 3)
    known = made["metadata"]["treering"]
    assert (known["rollout"], known["group"], known["reward"], known["n_rows"]) == ("g-3", "g", 0.5, 1)


def test_a_chat_goes_on_behind_a_drift():
    (detail,) = context(parted().graph())["rollout_details"]
    assert detail["prompt_token_ids"] == [[1, 2], [1, 2, 3, 8, 5, 6]]
    assert detail["extra"]["row"] == [0, 1]


@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
@given(told())
def test_every_trainable_token_is_in_one_turn_behind_its_own_prompt(story):
    graph = read(story.rollout, story.calls)
    note(repr(story))
    calls = {call.n: call for call in story.calls}
    details = context(graph)["rollout_details"]
    seen = []
    for detail in details:
        turns = zip(*(detail[name] for name in ("prompt_token_ids", "completion_token_ids", "logprobs")), strict=True)
        for (prompt, sampled, logprobs), n in zip(turns, detail["extra"]["call"], strict=True):
            assert prompt + sampled == whole(calls[n])
            assert [of_mark(logprob) for logprob in logprobs] == [(n, place) for place in range(len(sampled))]
            seen += [of_mark(logprob) for logprob in logprobs]
    assert sorted(seen) == sorted(dealt(story))


@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
@given(told(wild=True), st.randoms(use_true_random=False))
def test_the_order_in_which_records_come_changes_nothing(story, random):
    shuffled = list(story.calls)
    random.shuffle(shuffled)
    forms = []
    for calls in (story.calls, shuffled):
        try:
            forms.append(context(read(story.rollout, calls), roles=ROLES))
        except Refused as refused:
            forms.append(str(refused))
    assert forms[0] == forms[1]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_main_comes_first_and_all_that_is_trained_is_there(path):
    graph = graph_of(load(path))
    details = context(graph, roles=ROLES)["rollout_details"]
    assert set(details[0]["extra"]["role"]) == {"main"}
    assert all("main" not in detail["extra"]["role"] for detail in details[1:])
    assert all(len(set(detail["extra"]["conversation"])) == 1 for detail in details[1:])
    sampled = sum(len(ids) for detail in details for ids in detail["completion_token_ids"])
    assert sampled == cut(graph, Options(roles=ROLES)).n_trained_tokens


def test_without_main_there_is_no_first():
    graph = graph_of(load(FOLDER / "codex-subagents.json"))
    with pytest.raises(Refused, match="nothing of main") as caught:
        context(graph, roles=("subagent",))
    assert "roles=main" in caught.value.hint


def test_rows_that_cross_drifts_are_refused():
    with pytest.raises(Refused, match="cross drifts"):
        context(parted().graph(), drift="realign")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda detail: detail["logprobs"].pop(), "2 completion_token_ids, 1 logprobs"),
        (lambda detail: detail["extra"]["call"].pop(), "1 call"),
        (lambda detail: detail["logprobs"][1].append(-1.0), "turn 1: 1 completion_token_ids, 2 logprobs"),
        (lambda detail: detail["completion_token_ids"].__setitem__(0, [-1, 4]), "token ids"),
        (lambda detail: detail["prompt_token_ids"].__setitem__(0, []), "empty"),
        (lambda detail: detail["logprobs"][0].__setitem__(0, float("nan")), "no logprob"),
    ],
)
def test_what_harbor_takes_in_silence(spoil, said):
    (detail,) = context(turns().graph())["rollout_details"]
    check([detail])
    spoil(detail)
    with pytest.raises(Refused, match=said):
        check([detail])
