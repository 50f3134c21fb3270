"""The tree: each token once, each reply under the prefix that it was scored under."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from graph.graph import Graph, read
from graph.records import IntArray, Weights, WeightSpan
from graph.sequences import ROLES, Options, cut
from graph.tree import Tree, plant
from tests.graph import corpus
from tests.graph.tape import Tape, assistant, result, system, user
from tests.graph.told import stories

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
TASK = [system("You work."), user("Make the tests pass.")]


def ids(*tokens: int) -> IntArray:
    return np.array(tokens, np.int32)


def way(tree: Tree, place: int) -> list[int]:
    """Places from the beginning of a prompt down to one."""
    found = []
    while place >= 0:
        found.append(place)
        place = int(tree.parents[place])
    return found[::-1]


def check(tree: Tree, graph: Graph) -> None:
    """Hold a tree against the forest that it is of."""
    forest = graph.forest
    n = len(tree.input_ids)
    assert {len(array) for array in (tree.parents, tree.position_ids, tree.loss_mask, tree.logprobs)} == {n}
    trained = np.zeros(n, np.int64)
    for reply in tree.replies:
        places = way(tree, tree.nodes[reply.node].end - 1)
        np.testing.assert_array_equal(tree.input_ids[places], forest.ids(reply.call))
        assert tree.position_ids[places].tolist() == list(range(len(places)))
        mine = places[forest.n_prompt(reply.call) :]
        np.testing.assert_array_equal(tree.logprobs[mine], forest.calls[reply.call].logprobs)
        trained[mine] += 1
    # Each sampled token of each reply once, and nothing else.
    np.testing.assert_array_equal(tree.loss_mask, trained)
    np.testing.assert_array_equal(np.isnan(tree.logprobs), tree.loss_mask == 0)

    assert [(node.node, node.start) for node in tree.nodes] == list(
        enumerate([0, *(node.end for node in tree.nodes[:-1])] if tree.nodes else [])
    )
    begun = set()
    for node in tree.nodes:
        assert node.start < node.end
        assert tree.parents[node.start] == (-1 if node.parent is None else tree.nodes[node.parent].end - 1)
        np.testing.assert_array_equal(tree.parents[node.start + 1 : node.end], np.arange(node.start, node.end - 1))
        assert node.parent is None or node.parent < node.node
        assert set(tree.loss_mask[node.start : node.end].tolist()) == {int(node.trained)}
        # Context that is shared is there once.
        first = node.parent, int(tree.input_ids[node.start])
        assert node.kind == "sampled" or first not in begun
        begun.add(first)


@settings(max_examples=100, deadline=None, suppress_health_check=SLOW)
@given(stories(), st.lists(st.sampled_from(ROLES), min_size=1, unique=True), st.sampled_from(["context", "train"]))
def test_every_reply_stands_under_its_own_prefix_and_every_token_is_trained_once(story, roles, aborted):
    graph = read(story.rollout, story.calls)
    note(repr(graph))
    options = Options(roles=tuple(roles), drift="tree", aborted=aborted)
    tree = plant(graph, options)
    check(tree, graph)
    rows = cut(graph, Options(roles=tuple(roles), aborted=aborted))
    assert sorted(reply.call for reply in tree.replies) == sorted(n for row in rows.sequences for n in row.trained)
    assert (tree.left_out, tree.findings) == (rows.left_out, rows.findings)
    assert tree.n_trained_tokens == rows.n_trained_tokens
    assert len(tree.input_ids) <= sum(len(row.input_ids) for row in rows.sequences)


@pytest.mark.parametrize("path", sorted(corpus.FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_the_tree_of_a_real_rollout(path):
    graph = corpus.graph_of(corpus.load(path))
    check(plant(graph, Options(roles=ROLES, drift="tree")), graph)


def shape(tree: Tree) -> list[tuple[int | None, int, str, bool, list[int]]]:
    return [
        (node.parent, node.call, node.kind, node.trained, tree.input_ids[node.start : node.end].tolist())
        for node in tree.nodes
    ]


def test_a_chain_is_a_line():
    tape = Tape()
    tape.say(TASK, assistant("One."), prompt_ids=ids(1, 2), sampled=[3, 4], usage_prompt=None)
    messages = [*TASK, assistant("One."), user("Go on.")]
    tape.say(messages, assistant("Two."), prompt_ids=ids(1, 2, 3, 4, 5), sampled=[6], usage_prompt=None)
    assert shape(plant(tape.graph())) == [
        (None, 0, "prompt", False, [1, 2]),
        (0, 0, "sampled", True, [3, 4]),
        (1, 1, "prompt", False, [5]),
        (2, 1, "sampled", True, [6]),
    ]


def test_a_drift_parts_where_the_ids_do():
    tape = Tape()
    tape.say(TASK, assistant("One."), prompt_ids=ids(1, 2), sampled=[3, 4], usage_prompt=None)
    messages = [*TASK, assistant("One."), user("Go on.")]
    tape.say(messages, assistant("Two."), prompt_ids=ids(1, 2, 3, 9, 5), sampled=[6], usage_prompt=None)
    assert shape(plant(tape.graph())) == [
        (None, 0, "prompt", False, [1, 2]),
        (0, 0, "sampled", True, [3]),
        (1, 0, "sampled", True, [4]),
        (1, 1, "prompt", False, [9, 5]),
        (3, 1, "sampled", True, [6]),
    ]


def test_two_draws_share_their_prompt_and_no_token_that_was_sampled():
    tape = Tape()
    for choice in (0, 1):
        tape.say(
            TASK, assistant("One."), prompt_ids=ids(1, 2), sampled=[3, 4], usage_prompt=None, choice=choice,
            id="chatcmpl-x", arrived=1,
        )  # fmt: skip
    tree = plant(tape.graph())
    assert shape(tree) == [
        (None, 0, "prompt", False, [1, 2]),
        (0, 0, "sampled", True, [3, 4]),
        (0, 1, "sampled", True, [3, 4]),
    ]
    assert tree.parents.tolist() == [-1, 0, 1, 2, 1, 4]
    assert tree.position_ids.tolist() == [0, 1, 2, 3, 2, 3]


def test_conversations_share_what_they_begin_with():
    tape = Tape()
    asks = assistant("", ("task", {"prompt": "Find every caller."}))
    tape.say([TASK[0], TASK[1]], asks, prompt_ids=ids(1, 2, 3), sampled=[4], usage_prompt=None)
    tape.say([TASK[0], user("Find every caller.")], assistant("None of them."), prompt_ids=ids(1, 2, 5), sampled=[6],
             usage_prompt=None)  # fmt: skip
    tape.say([*TASK, asks, result("None of them.", asks)], assistant("Done."), prompt_ids=ids(1, 2, 3, 4, 7),
             sampled=[8], usage_prompt=None)  # fmt: skip
    tree = plant(tape.graph(), Options(roles=("main", "subagent"), drift="tree"))
    assert shape(tree) == [
        (None, 0, "prompt", False, [1, 2]),
        (0, 0, "prompt", False, [3]),
        (1, 0, "sampled", True, [4]),
        (2, 2, "prompt", False, [7]),
        (3, 2, "sampled", True, [8]),
        (0, 1, "prompt", False, [5]),
        (5, 1, "sampled", True, [6]),
    ]
    assert [(reply.call, reply.conversation, reply.role, reply.node) for reply in tree.replies] == [
        (0, 0, "main", 2),
        (2, 0, "main", 4),
        (1, 1, "subagent", 6),
    ]


def test_a_reply_that_may_not_be_trained_is_context_of_what_goes_on_from_it():
    tape = Tape()
    tape.say(TASK, assistant("One."), prompt_ids=ids(1, 2), sampled=[3, 4], usage_prompt=None, constrained=("grammar",))
    messages = [*TASK, assistant("One."), user("Go on.")]
    tape.say(messages, assistant("Two."), prompt_ids=ids(1, 2, 3, 4, 5), sampled=[6], usage_prompt=None)
    tree = plant(tape.graph())
    assert shape(tree)[1] == (0, 0, "sampled", False, [3, 4])
    assert tree.loss_mask.tolist() == [0, 0, 0, 0, 0, 1]
    assert [(left.call, left.reason) for left in tree.left_out] == [(0, "constrained")]


def test_a_node_is_cut_where_its_weights_change():
    tape = Tape()
    spans = (WeightSpan(version="v1", start=0, end=2), WeightSpan(version="v2", start=2, end=3))
    tape.say(TASK, assistant("One."), prompt_ids=ids(1, 2), sampled=[3, 4, 5], usage_prompt=None,
             weights=Weights(start="v1", end="v2", spans=spans))  # fmt: skip
    tree = plant(tape.graph())
    assert [(node.start, node.end, node.weights) for node in tree.nodes] == [(0, 2, None), (2, 4, "v1"), (4, 5, "v2")]


def test_nothing_to_train_is_an_empty_tree_that_says_so():
    tape = Tape()
    tape.say(TASK, assistant("One."), logprobs=None)
    tree = plant(tape.graph())
    assert (len(tree.input_ids), tree.nodes, tree.n_trained_tokens) == (0, (), 0)
    assert "nothing_trainable" in tree.findings
