"""verifiers' trace, read as verifiers reads it."""

import json
from datetime import UTC, datetime

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from graph.formats.refused import Refused
from graph.formats.verifiers import check, to_json
from graph.graph import read
from graph.records import Stop
from graph.sequences import ROLES, Options, cut
from tests.graph.corpus import FOLDER, graph_of, load
from tests.graph.formats.captures import branched, parted, turns
from tests.graph.formats.readback import Read, dealt, mark, of_mark, told, whole, wire
from tests.graph.tape import Tape, assistant, result, user

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


def trace(graph, **options):
    return wire(to_json(graph, cut(graph, Options(**options))))


def branches(trace, *, once: bool = True) -> list[Read]:
    """What a trainer reads: each leaf's way from its root; a node is trained in the first branch that it is in."""
    nodes = trace["nodes"]
    inner = {node["parent"] for node in nodes}
    accepted = {link["node"] for node in nodes for link in node["semantic_parents"] if link["type"] == "compaction"}
    found, seen = [], set()
    for leaf in range(len(nodes)):
        if leaf in inner:
            continue
        if any(link["type"] == "compaction_attempt" for link in nodes[leaf]["semantic_parents"]):
            assert leaf in accepted, "verifiers would not train it"
        way, at = [], leaf
        while at is not None:
            way.append(at)
            at = nodes[at]["parent"]
        read_ = Read([], {})
        for place in reversed(way):
            node = nodes[place]
            values = iter(node["logprobs"])
            for token, trained in zip(node["token_ids"], node["mask"], strict=True):
                if trained:
                    logprob = next(values)
                    if place not in seen or not once:
                        read_.trained[len(read_.ids)] = logprob
                read_.ids.append(token)
            assert next(values, None) is None
            seen.add(place)
        found.append(read_)
    return found


def test_a_turn_is_its_messages_and_what_it_sampled():
    made = trace(turns().graph())
    shown = [(node["parent"], node["message"]["role"], node["sampled"], node["token_ids"]) for node in made["nodes"]]
    assert shown == [
        (None, "user", False, [1, 2]),
        (0, "assistant", True, [3, 4]),
        (1, "user", False, [5, 6]),
        (2, "assistant", True, [7]),
    ]
    assert made["nodes"][1]["mask"] == [True, True]
    assert made["nodes"][1]["logprobs"] == [-0.25, -0.5]
    assert made["nodes"][2]["logprobs"] == []
    assert [call["node"] for call in made["calls"]] == [1, 3]
    assert made["calls"][0]["sampling"] == {"temperature": 1.0}
    assert made["calls"][0]["usage"] == {"prompt_tokens": 2, "completion_tokens": 2}
    assert made["rewards"] == {"reward": {"score": 0.5, "weight": 1.0}}
    assert (made["id"], made["is_completed"], made["ok"], made["stop_condition"]) == (
        "g-3",
        True,
        True,
        "agent_completed",
    )
    known = made["info"]["treering"]
    assert (known["rollout"], known["n_rows"], known["rows"][0]["weight_versions"]) == ("g-3", 1, ["7", "8"])


def test_a_prompt_that_does_not_go_on_id_by_id_begins_at_a_root():
    made = trace(parted().graph())
    assert [node["parent"] for node in made["nodes"]] == [None, 0, None, 2, 3, 4]
    # The second request's messages are all there, and its ids stand on the last of them.
    assert [node["message"]["role"] for node in made["nodes"][2:]] == ["user", "assistant", "user", "assistant"]
    assert [node["token_ids"] for node in made["nodes"][2:]] == [[], [], [1, 2, 3, 8, 5, 6], [7]]
    assert made["nodes"][3]["sampled"] is False
    assert made["nodes"][5]["semantic_parents"] == [{"node": 1, "type": "continuation"}]


def test_two_ways_on_share_what_is_before_them():
    made = trace(branched().graph())
    assert [branch.ids for branch in branches(made)] == [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 9, 10]]
    assert [branch.trained for branch in branches(made)] == [{2: -0.25, 3: -0.5, 5: -1.0}, {5: -2.0}]


def test_two_draws_of_one_prompt_share_it():
    tape = Tape()
    for n in range(2):
        tape.say([user("Go")], assistant(f"Draw {n}."), id="chatcmpl", choice=n, arrived=1, ended=2)
    made = trace(tape.graph())
    assert [node["parent"] for node in made["nodes"]] == [None, 0, 0][: len(made["nodes"])]
    assert sum(len(branch.trained) for branch in branches(made)) == cut(tape.graph()).n_trained_tokens


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
@given(told())
def test_every_trainable_token_is_trained_once_with_its_logprob_behind_the_prefix_it_was_drawn_from(story):
    graph = read(story.rollout, story.calls)
    note(repr(story))
    note(repr(graph))
    calls = {call.n: call for call in story.calls}
    made = trace(graph)
    check(made)
    found = branches(made)
    seen = [of_mark(logprob) for branch in found for logprob in branch.trained.values()]
    assert sorted(seen) == sorted(dealt(story))
    wholes = [whole(call) for call in story.calls]
    for branch in found:
        assert branch.ids in wholes
        for place, logprob in branch.trained.items():
            n, at = of_mark(logprob)
            assert logprob == mark(n, at)
            assert branch.ids[: place + 1] == whole(calls[n])[: len(calls[n].prompt_ids) + at + 1]


@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
@given(told(wild=True), st.randoms(use_true_random=False))
def test_the_order_in_which_records_come_changes_nothing(story, random):
    shuffled = list(story.calls)
    random.shuffle(shuffled)
    forms = []
    for calls in (story.calls, shuffled):
        try:
            forms.append(trace(read(story.rollout, calls), roles=ROLES))
        except Refused as refused:
            forms.append(str(refused))
    assert forms[0] == forms[1]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_the_rows_of_a_real_agent_are_paths(path):
    graph = graph_of(load(path))
    rows = cut(graph, Options(roles=ROLES))
    found = branches(trace(graph, roles=ROLES), once=False)
    ids = [branch.ids for branch in found]
    for row in rows.sequences:
        branch = found[ids.index(row.input_ids.tolist())]
        for place in np.flatnonzero(row.loss_mask).tolist():
            # Every bit of it.
            assert np.float32(branch.trained[place]) == row.logprobs[place]
    once = branches(trace(graph, roles=ROLES))
    assert sum(len(branch.trained) for branch in once) == rows.n_trained_tokens


def edges(made) -> set[tuple[str, int, int]]:
    """Every edge but continuations, between calls."""
    call_of = {call["node"]: n for n, call in enumerate(made["calls"])}
    return {
        (link["type"], call_of[link["node"]], call_of[place])
        for place, node in enumerate(made["nodes"])
        for link in node["semantic_parents"]
        if link["type"] != "continuation"
    }


def test_a_subagent_is_called_and_brings_back():
    asks = assistant("", ("task", {"prompt": "Look into the cellar, please."}))
    said = assistant("There is nothing but wine in the cellar.")
    tape = Tape()
    tape.say([user("Go")], asks, tools=("task",))
    tape.say([user("Look into the cellar, please.")], said, tools=("ls",))
    tape.say(
        [user("Go"), asks, result("There is nothing but wine in the cellar.", asks)],
        assistant("Wine."),
        tools=("task",),
    )
    assert edges(trace(tape.graph(), roles=("main", "subagent"))) == {
        ("subagent_call", 0, 1),
        ("subagent_return", 1, 2),
    }
    # Of a call that isn't there nothing is said.
    assert edges(trace(tape.graph())) == set()


def test_a_compaction_names_the_summary_and_what_it_sums_up():
    graph = graph_of(load(FOLDER / "opencode-subagents-compaction.json"))
    made = trace(graph, roles=ROLES)
    (summed,) = [edge for edge in edges(made) if edge[0] == "compaction"]
    (attempt,) = [edge for edge in edges(made) if edge[0] == "compaction_attempt"]
    assert summed[1] == attempt[2]
    order = sorted(graph.forest.calls)
    (n,) = [n for n, link in graph.forest.links.items() if link.kind == "compaction"]
    carried, parent = graph.forest.links[n].carries, graph.forest.links[n].parent
    present = [
        m for m in order if m in {call for row in cut(graph, Options(roles=ROLES)).sequences for call in row.calls}
    ]
    assert (present[summed[2]], present[summed[1]], present[attempt[1]]) == (n, carried[0], parent)


def test_messages_keep_what_verifiers_has_a_place_for():
    asks = assistant("Let me see.", ("bash", {"command": "ls"}))
    asks["reasoning_content"] = "Hm."
    begun = [{"role": "system", "content": "Be brief."}, user("Go")]
    tape = Tape()
    tape.say(begun, asks, tools=("bash",))
    tape.say([*begun, asks, result("a", asks), user("No.")], assistant("", ("bash", {})), tools=("bash",))
    critic = msgspec.structs.replace(tape.calls[1].messages[-1], role="critic")
    tape.calls[1] = msgspec.structs.replace(tape.calls[1], messages=(*tape.calls[1].messages[:-1], critic))
    made = trace(tape.graph())
    messages = [node["message"] for node in made["nodes"]]
    # A role that verifiers doesn't know is a user's.
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "user", "assistant"]
    assert messages[3] == {"role": "tool", "content": "a", "tool_call_id": "call_bash_0"}
    assert messages[2]["reasoning_content"] == "Hm."
    (use,) = messages[2]["tool_calls"]
    assert use == {"id": "call_bash_0", "name": "bash", "arguments": '{"command": "ls"}'}
    assert made["nodes"][-1]["message"]["content"] is None
    assert made["tools"] == [{"type": "function", "name": "bash"}]
    assert made["nodes"][0]["tools"] == made["tools"]


def test_ids_without_messages_stand_on_an_empty_one():
    tape = turns()
    tape.calls = [msgspec.structs.replace(call, messages=(), reply=None, dialect="completions") for call in tape.calls]
    made = trace(tape.graph())
    assert [node["message"] for node in made["nodes"]] == [
        {"role": "user", "content": ""},
        {"role": "assistant", "content": None},
    ] * 2
    assert [branch.ids for branch in branches(made)] == [[1, 2, 3, 4, 5, 6, 7]]


def test_times_are_the_record_s():
    tape = turns()
    tape.calls[0] = msgspec.structs.replace(tape.calls[0], started_at="2026-01-02T03:04:05.500Z", ended_ms=250.0)
    made = trace(tape.graph())
    start = datetime(2026, 1, 2, 3, 4, 5, 500_000, UTC).timestamp()
    assert made["calls"][0]["time"] == {"start": start, "end": start + 0.25}
    assert (made["nodes"][0]["timestamp"], made["nodes"][1]["timestamp"]) == (start, start + 0.25)
    assert made["nodes"][3]["timestamp"] == 0.0


@pytest.mark.parametrize(
    ("rollout", "said"),
    [
        ({"reward": None}, {"rewards": {"reward": None}}),
        ({"reward": 0.0}, {"rewards": {"reward": {"score": 0.0, "weight": 1.0}}}),
        ({"state": "open"}, {"is_completed": False, "stop_condition": None}),
        (
            {"stopped": Stop(limit="max_calls", at_call=2, stops=1)},
            {"stop_condition": "max_turns", "is_timeout": False},
        ),
        (
            {"stopped": Stop(limit="deadline_s", at_call=2, stops=1)},
            {"stop_condition": "agent_timeout", "is_timeout": True},
        ),
        (
            {"incomplete": True},
            {"ok": False, "errors": [{"type": "CaptureIncomplete", "message": "A call could not be stored."}]},
        ),
    ],
)
def test_how_a_rollout_ended(rollout, said):
    made = trace(turns(**rollout).graph())
    assert {name: made[name] for name in said} == said


def test_context_alone_is_no_loss():
    tape = turns()
    tape.calls[0] = msgspec.structs.replace(tape.calls[0], constrained=("guided_json",))
    made = trace(tape.graph())
    assert (made["nodes"][1]["sampled"], made["nodes"][1]["mask"], made["nodes"][1]["logprobs"]) == (
        True,
        [False, False],
        [],
    )
    (branch,) = branches(made)
    assert (branch.ids, branch.trained) == ([1, 2, 3, 4, 5, 6, 7], {6: -1.0})


def test_rows_that_cross_drifts_are_refused():
    with pytest.raises(Refused, match="never cross"):
        trace(parted().graph(), drift="realign")


def test_logprobs_keep_every_bit():
    tape = turns()
    drawn = np.array([-0.123456789, -1e-7], np.float32)
    tape.calls[0] = msgspec.structs.replace(tape.calls[0], logprobs=drawn)
    told_ = json.loads(json.dumps(trace(tape.graph())))
    assert np.array(told_["nodes"][1]["logprobs"], np.float32).tobytes() == drawn.tobytes()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda nodes: nodes[1]["logprobs"].pop(), "1 logprobs for 2 trained"),
        (lambda nodes: nodes[1]["mask"].pop(), "2 ids and 1 mask"),
        (lambda nodes: nodes[1]["token_ids"].__setitem__(0, -3), "token ids"),
        (lambda nodes: nodes[1]["logprobs"].__setitem__(0, None), "without a logprob"),
        (lambda nodes: nodes[0].update(mask=[True, False], logprobs=[-1.0]), "no call sampled"),
        (lambda nodes: nodes[2].update(parent=9), "not there"),
        (lambda nodes: nodes[1].update(parent=3), "before its parent"),
        (lambda nodes: nodes[3]["semantic_parents"].append({"node": 7, "type": "x"}), "not there"),
    ],
)
def test_what_verifiers_takes_in_silence(spoil, said):
    made = trace(turns().graph())
    check(made)
    spoil(made["nodes"])
    with pytest.raises(Refused, match=said):
        check(made)
