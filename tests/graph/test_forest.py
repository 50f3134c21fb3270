"""The forest as a whole: the reported cases, and the order of records."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graph import links, tokens
from graph.drift import measure
from graph.forest import Forest, Growing, grow
from graph.records import Call, Notice, Rollout
from tests.graph.cases import Case, load
from tests.graph.told import Story, stories

CASES = [1, 2, 4, 5, 7, 9, 18, 40, 41, 42, 44, 46, 47, 48, 50, 54, 57]


def exact_parents(case: Case, forest: Forest) -> dict[str, str | None]:
    links = [forest.links[n] for n in range(len(case.names))]
    return {
        name: case.names[link.parent] if link.kind == "exact" and link.parent is not None else None
        for name, link in zip(case.names, links, strict=True)
    }


@pytest.mark.parametrize("number", CASES)
def test_exact_parents(number):
    case = load(number)
    assert exact_parents(case, grow(case.rollout, case.calls)) == case.expected["parents"]


@pytest.mark.parametrize("number", CASES)
def test_the_trie_gives_back_what_went_in(number):
    case = load(number)
    forest = grow(case.rollout, case.calls)
    for call in case.calls:
        assert forest.calls[call.n].prompt_ids is None
        assert forest.prompt_ids(call.n).tolist() == call.prompt_ids.tolist()
        assert forest.sampled_ids(call.n).tolist() == call.sampled_ids.tolist()
        assert forest.ids(call.n).tolist() == [*call.prompt_ids, *call.sampled_ids]
        assert (forest.n_prompt(call.n), forest.n_sampled(call.n)) == (len(call.prompt_ids), len(call.sampled_ids))


@pytest.mark.parametrize("number", [number for number in CASES if "links" in load(number).expected])
def test_where_two_calls_part(number):
    case = load(number)
    forest = grow(case.rollout, case.calls)
    for link in case.expected["links"]:
        before, child = case.n(link["previous"]), case.n(link["child"])
        at = link["first_mismatch_index"]
        n_prompt, n_ids = forest.n_prompt(before), len(forest.ids(before))
        where = "prompt" if at < n_prompt else "sampled"
        assert measure(forest.ids(before), n_prompt, forest.prompt_ids(child)) == (n_ids - at, at, where)


def test_a_late_answer_that_nobody_had_is_discarded_with_its_retry_in_one_tree():
    case = load(40)
    forest = grow(case.rollout, case.calls)
    assert case.named(forest.discarded) == case.expected["orphans"]
    assert [(fork.at, fork.kind, fork.children, fork.kept) for fork in forest.forks] == [(None, "retry", (0, 1), 1)]
    assert (forest.trees, forest.roots) == (((0, 1, 2),), (1,))


def test_a_failed_call_is_in_no_tree_and_is_named_as_a_try():
    case = load(41)
    forest = grow(case.rollout, case.calls)
    assert case.named(n for n in forest.calls if n not in forest.tree_of) == case.expected["failed"]
    assert [(fork.at, fork.kind, fork.children, fork.kept) for fork in forest.forks] == [(None, "retry", (0, 1), 1)]
    assert forest.discarded == frozenset()


def test_subagents_between_main_calls_are_trees_of_their_own():
    case = load(42)
    forest = grow(case.rollout, case.calls)
    assert sorted(map(case.named, forest.trees)) == sorted(map(sorted, case.expected["trees"]))
    assert forest.forks == ()


def test_two_continuations_are_a_branch_and_both_are_ends():
    case = load(44)
    forest = grow(case.rollout, case.calls)
    assert [(fork.at, fork.kind, fork.children, fork.kept) for fork in forest.forks] == [(0, "branch", (1, 2), None)]
    assert forest.discarded == frozenset()


def test_a_title_changes_nothing_for_main():
    case = load(47)
    forest = grow(case.rollout, case.calls)
    assert sorted(map(case.named, forest.trees)) == sorted([case.expected["main_row"], case.expected["separate_tree"]])


def test_a_volatile_line_breaks_every_call_at_one_place():
    case = load(48)
    forest = grow(case.rollout, case.calls)
    told = case.expected["diagnostic"]
    breaks = {
        name: measure(forest.ids(n - 1), forest.n_prompt(n - 1), forest.prompt_ids(n))[1]
        for n, name in enumerate(case.names)
        if n
    }
    assert breaks == dict.fromkeys(told["calls_affected"], told["common_first_mismatch_index"])


def test_a_hang_up_in_the_middle_is_given_up_for_its_retry():
    case = load(50)
    forest = grow(case.rollout, case.calls)
    assert case.named(forest.discarded) == case.expected["not_trainable"]
    assert (forest.trees, forest.roots) == (((0, 1),), (1,))
    assert forest.fork_of == {0: "retry", 1: "retry"}


def test_of_two_equal_requests_at_once_the_one_gone_on_with_is_kept():
    case = load(54)
    forest = grow(case.rollout, case.calls)
    assert [(fork.kind, fork.kept) for fork in forest.forks] == [("resample", case.n("c1b"))]
    assert case.named(forest.discarded) == ["c1"]
    assert len(forest.trees) == 2


def test_ids_that_come_back_prove_an_aborted_call_used():
    case = load(57)
    forest = grow(case.rollout, case.calls)
    c2 = case.n("c2")
    assert (forest.calls[c2].status, forest.calls[c2].delivered) == ("aborted", False)
    assert forest.proved == {c2}
    assert forest.delivered(c2) is True
    assert forest.children(case.n("c1")) == (c2,)


def everything(forest: Forest) -> object:
    """Every answer that a forest gives, to be compared."""
    return (
        list(forest.calls),
        forest.notices,
        [forest.links[n] for n in forest.calls],
        forest.forks,
        dict(forest.fork_of),
        forest.discarded,
        forest.trees,
        forest.roots,
        dict(forest.tree_of),
        forest.proved,
        forest.came_back,
        forest.tokens.distinct,
        [forest.children(n) for n in forest.calls],
        [None if (ids := forest.ids(n)) is None else ids.tolist() for n in forest.calls],
        repr(forest),
    )


def without_ids(call: Call, half: str) -> Call:
    changes: dict[str, object] = {"none": {}, "prompt": {"prompt_ids": None}, "sampled": {"sampled_ids": None}}[half]
    if half == "both":
        changes = {"prompt_ids": None, "sampled_ids": None}
    return msgspec.structs.replace(call, **changes)


slow = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@slow
@given(stories(), st.randoms(use_true_random=False), st.data())
def test_the_order_of_records_changes_nothing(story: Story, random, data):
    halves = data.draw(st.lists(st.sampled_from(["none"] * 6 + ["prompt", "sampled"]), min_size=1, max_size=5))
    calls = [without_ids(call, halves[n % len(halves)]) for n, call in enumerate(story.calls)]
    notices = [Notice(code=code, calls=(n,), data={"field": n}) for code in ("b", "a") for n in (1, 0)]
    told = everything(grow(story.rollout, iter(calls), notices))
    random.shuffle(calls)
    random.shuffle(notices)
    assert everything(grow(story.rollout, iter(calls), notices)) == told


few = st.lists(st.integers(0, 1), max_size=5)


@st.composite
def bare_calls(draw) -> list[Call]:
    """Calls without messages over two tokens, most of which continue something, with every status."""
    calls: list[Call] = []
    n = draw(st.integers(1, 9))
    times = draw(st.permutations(range(2 * n)))
    spans = sorted(tuple(sorted((times[2 * i], times[2 * i + 1]))) for i in range(n))
    for i, (arrived, ended) in enumerate(spans):
        prompt = draw(few)
        if calls and draw(st.booleans()):
            before = draw(st.sampled_from(calls))
            prompt = [*(before.prompt_ids.tolist() + before.sampled_ids.tolist()), *prompt]
        status = draw(st.sampled_from(["complete"] * 5 + ["aborted", "error", "running"]))
        calls.append(
            Call(
                n=i,
                status=status,
                delivered=draw(st.sampled_from([True, True, True, False, None])),
                arrived=arrived,
                ended=None if status == "running" else ended,
                prompt_ids=np.array(prompt, np.int32),
                sampled_ids=np.array(draw(few), np.int32),
            )
        )
    return calls


def exact_by_comparing(calls: list[Call]) -> dict[int, int | None]:
    """The rule of exact links, word for word, by comparing every call with every other."""
    found: dict[int, int | None] = {}
    proved: set[int] = set()
    for child in calls:
        best = None
        for parent in calls:
            ids = [*parent.prompt_ids, *parent.sampled_ids]
            if (
                parent.status in ("complete", "aborted")
                and child.status in ("complete", "aborted")
                and parent.ended < child.arrived
                and len(parent.sampled_ids)
                and list(child.prompt_ids[: len(ids)]) == ids
            ):
                rank = len(ids), parent.delivered is True or parent.n in proved, parent.ended
                if best is None or rank > best[0]:
                    best = rank, parent.n
        found[child.n] = None if best is None else best[1]
        if best is not None:
            proved |= {best[1]} if not best[0][1] else set()
    return found


@given(bare_calls())
@settings(max_examples=300, deadline=None)
def test_exact_links_are_what_comparing_all_pairs_gives(calls):
    forest = grow(Rollout(id="r"), calls)
    assert {n: link.parent for n, link in forest.links.items()} == exact_by_comparing(calls)
    assert {link.kind for link in forest.links.values()} <= {"exact", "root"}
    for link in forest.links.values():
        assert link.n_shared == (0 if link.parent is None else len(forest.ids(link.parent)))


@given(bare_calls())
@settings(max_examples=300, deadline=None)
def test_the_outline_holds_together(calls):
    forest = grow(Rollout(id="r"), calls)
    nodes = [call.n for call in calls if call.status in ("complete", "aborted")]
    assert sorted(n for tree in forest.trees for n in tree) == nodes
    assert all(root in tree for tree, root in zip(forest.trees, forest.roots, strict=True))
    assert all(tree == tuple(sorted(tree)) for tree in forest.trees)
    for n, link in forest.links.items():
        if link.parent is not None:
            assert forest.tree_of[n] == forest.tree_of[link.parent]
            assert n in forest.children(link.parent)
    assert forest.fork_of.keys() == {n for fork in forest.forks for n in fork.children}
    for fork in forest.forks:
        assert len(fork.children) > 1
        assert fork.kept is None or fork.kept in fork.children
    # What is discarded is an end that somebody else's way went past, and is in a fork.
    for n in forest.discarded:
        assert not forest.children(n)
        assert n in nodes
    assert forest.proved <= {n for n in nodes if forest.children(n)}


# -- growing ----------------------------------------------------------------------------------------------------------


def running(call: Call) -> Call:
    """The record of a call before it ended."""
    return msgspec.structs.replace(
        call, status="running", delivered=None, ended=None, reply=None, prompt_ids=None, sampled_ids=None, logprobs=None
    )


def records(call: Call) -> list[Call]:
    """What is known of a call, one record after the other: it runs, it has ended, its delivery is known."""
    return [running(call), msgspec.structs.replace(call, delivered=None), call]


@slow
@given(stories(), st.randoms(use_true_random=False), st.data())
def test_a_growing_forest_says_at_any_time_what_one_from_scratch_does(story: Story, random, data):
    """Whatever came first: calls that end out of order, marks of delivery that come late, ancestors that come late."""
    left = [records(call) for call in story.calls]
    if data.draw(st.booleans()):
        left = [[call] for call in story.calls]
        random.shuffle(left)
    growing, known, taken = Growing(), {}, []
    while left:
        # Mostly in order of arrival, with some calls at once.
        place = min(data.draw(st.integers(0, 3)), len(left) - 1)
        record = left[place].pop(0)
        left = [each for each in left if each]
        growing.put(record)
        known[record.n] = record
        if random.random() < 0.3:
            forest = growing.forest(story.rollout)
            expected = everything(grow(story.rollout, known.values()))
            assert everything(forest) == expected
            taken.append((forest, expected))
    assert everything(growing.forest(story.rollout)) == everything(grow(story.rollout, story.calls))
    # Nothing that came later has changed a forest.
    for forest, expected in taken:
        assert everything(forest) == expected


@given(bare_calls(), st.data())
@settings(max_examples=200, deadline=None)
def test_growing_with_calls_of_every_status(calls, data):
    growing, known = Growing(), {}
    for call in data.draw(st.permutations(calls)):
        growing.put(call)
        known[call.n] = call
        assert everything(growing.forest(Rollout(id="r"))) == everything(grow(Rollout(id="r"), known.values()))


def chain(n_calls: int) -> list[Call]:
    """A conversation without messages; each prompt is the one before, its reply, and three ids."""
    calls, prompt = [], [0]
    for n in range(n_calls):
        sampled = [n, n + 1]
        calls.append(
            Call(
                n=n, status="complete", delivered=True, arrived=2 * n, ended=2 * n + 1,
                prompt_ids=np.array(prompt, np.int32), sampled_ids=np.array(sampled, np.int32),
            )
        )  # fmt: skip
        prompt = [*prompt, *sampled, 7, 8, 9]
    return calls


@pytest.fixture
def work(monkeypatch) -> dict[str, int]:
    """How many calls were linked, and how many prompts were read."""
    done = {"linked": 0, "read": 0, "copied": 0}

    def counting(owner, name, key):
        plain = getattr(owner, name)

        def counted(*given):
            done[key] += 1
            return plain(*given)

        monkeypatch.setattr(owner, name, counted)

    counting(links.Linker, "add", "linked")
    counting(tokens.Trie, "insert", "read")
    counting(tokens.Trie, "copy", "copied")
    return done


def test_a_call_costs_the_call(work):
    growing = Growing()
    for call in chain(50):
        growing.put(call)
        growing.forest(Rollout(id="r"))
    assert work == {"linked": 50, "read": 50, "copied": 49}


def test_a_call_that_runs_costs_nothing_but_itself(work):
    growing = Growing()
    for call in chain(50):
        growing.put(running(call))
        growing.forest(Rollout(id="r"))
        growing.put(call)
        growing.forest(Rollout(id="r"))
    assert (work["linked"], work["read"]) == (100, 50)


def test_calls_behind_one_that_runs_are_linked_anew_and_no_prompt_is_read(work):
    growing = Growing()
    first, *rest = chain(10)
    growing.put(running(first))
    for call in rest:
        growing.put(call)
        growing.forest(Rollout(id="r"))
    assert work == {"linked": sum(range(2, 11)), "read": 9, "copied": 8}
    growing.put(first)
    assert [link.parent for link in growing.forest(Rollout(id="r")).links.values()] == [None, *range(9)]
    assert work["read"] == 10


def test_a_late_ancestor_adopts():
    growing = Growing()
    calls = chain(4)
    for call in (calls[0], calls[3]):
        growing.put(call)
    assert growing.forest(Rollout(id="r")).links[3].parent == 0
    growing.put(calls[2])
    assert growing.forest(Rollout(id="r")).links[3].parent == 2
    growing.put(calls[1])
    assert growing.forest(Rollout(id="r")).links[2].parent == 1


def test_a_record_that_says_nothing_new_changes_nothing(work):
    growing = Growing()
    calls = chain(5)
    for call in calls:
        growing.put(call)
    growing.forest(Rollout(id="r"))
    for call in calls:
        growing.put(call)
    growing.forest(Rollout(id="r"))
    assert work == {"linked": 5, "read": 5, "copied": 0}


def test_what_may_still_change():
    growing = Growing()
    calls = chain(5)
    growing.put(calls[0])
    growing.put(msgspec.structs.replace(calls[1], delivered=None))
    growing.put(msgspec.structs.replace(calls[2], delivered=False))
    growing.put(running(calls[3]))
    growing.put(msgspec.structs.replace(calls[4], status="error", delivered=False))
    assert growing.unsettled == (1, 2, 3)
    assert (growing.last, Growing().last) == (4, -1)
    assert repr(growing) == "<Growing: 5 calls, 0 linked, 23 tokens>"


def test_two_calls_of_one_number_are_refused():
    call = Call(n=3, status="complete", arrived=0, ended=1)
    with pytest.raises(ValueError, match="number 3"):
        grow(Rollout(id="r"), [call, call])


def test_a_forest_can_be_printed():
    case = load(40)
    assert repr(grow(case.rollout, case.calls)).splitlines() == [
        "Forest(40-retry-of-an-answer-nobody-had: 3 calls, 26 tokens)",
        "  0 complete 9+3 root retry discarded",
        "  1 complete 9+2 root retry",
        "    2 complete 21+2 exact of 1",
    ]
