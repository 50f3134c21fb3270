"""Every sampled token is trained once, on exactly what the engine scored."""

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from graph.eligibility import REASONS
from graph.graph import read
from graph.records import Stop, Weights, WeightSpan
from graph.sequences import ROLES, Masked, Options, cut
from graph.transitions import numbers
from tests.graph.cases import load
from tests.graph.tape import Tape, assistant, result, system, user
from tests.graph.told import Story, stories

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
TASK = [system("You work."), user("Make the tests pass.")]


def rows(tape: Tape, **options) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(calls, those trained) of each row."""
    return [(row.calls, row.trained) for row in cut(tape.graph(), Options(**options)).sequences]


def left_out(tape: Tape, **options) -> dict[int, str]:
    return {left.call: left.reason for left in cut(tape.graph(), Options(**options)).left_out}


def loop(tape: Tape, steps: int, **fields) -> list[dict]:
    """A tool loop of so many calls, and a last answer; returns its messages."""
    messages = list(TASK)
    for step in range(steps):
        asks = assistant("", ("bash", {"command": f"step {step}"}), ids=f"step{step}")
        tape.say(messages, asks, tools=("bash",), **fields)
        messages += [asks, result(f"result {step}", asks)]
    tape.say(messages, assistant("All done."), tools=("bash",), **fields)
    return [*messages, assistant("All done.")]


@settings(max_examples=120, deadline=None, suppress_health_check=SLOW)
@given(
    stories(),
    st.lists(st.sampled_from(ROLES), min_size=1, max_size=4, unique=True),
    st.sampled_from(["context", "train"]),
)
def test_every_sampled_token_is_trained_once_or_left_out_with_a_reason(story: Story, roles, aborted):
    graph = read(story.rollout, story.calls)
    note(repr(story))
    note(repr(graph))
    sequences = cut(graph, Options(roles=tuple(roles), aborted=aborted))
    recorded = {call.n: call for call in story.calls}

    trained = [n for row in sequences.sequences for n in row.trained]
    left = [out.call for out in sequences.left_out]
    assert sorted(trained + left) == sorted(recorded)
    for out in sequences.left_out:
        true = story.truth[out.call]
        wanted = true.role in roles or (true.kind == "summary" and "summary" in roles)
        broke_off = true.tried_again_by is not None and (
            aborted == "context" or not len(recorded[out.call].sampled_ids)
        )
        assert out.reason in REASONS
        assert broke_off or not wanted

    for place, row in enumerate(sequences.sequences):
        assert row.row == place
        assert len(row.input_ids) == len(row.loss_mask) == len(row.logprobs)
        assert (row.input_ids.dtype, row.loss_mask.dtype, row.logprobs.dtype) == (np.int32, np.uint8, np.float32)
        last = recorded[row.calls[-1]]
        assert row.calls[-1] == row.trained[-1]
        np.testing.assert_array_equal(row.input_ids, np.concatenate([last.prompt_ids, last.sampled_ids]))
        mask, logprobs = np.zeros_like(row.loss_mask), np.full_like(row.logprobs, np.nan)
        for n in row.trained:
            start, end = len(recorded[n].prompt_ids), len(recorded[n].prompt_ids) + len(recorded[n].sampled_ids)
            np.testing.assert_array_equal(row.input_ids[start:end], recorded[n].sampled_ids)
            np.testing.assert_array_equal(row.input_ids[:start], recorded[n].prompt_ids)
            mask[start:end], logprobs[start:end] = 1, recorded[n].logprobs
        np.testing.assert_array_equal(row.loss_mask, mask)
        np.testing.assert_array_equal(row.logprobs, logprobs)
        assert row.n_trained_tokens == mask.sum() > 0
        assert row.drift_crossed == 0
        spans = [(span.start, span.end) for span in row.spans]
        assert [start for start, _ in spans] == [0, *(end for _, end in spans[:-1])]
        assert spans[-1][1] == len(row.input_ids)
        for span in row.spans:
            assert (span.kind == "sampled") == any(
                len(recorded[n].prompt_ids) <= span.start < len(recorded[n].prompt_ids) + len(recorded[n].sampled_ids)
                for n in row.calls
            )
        for parent, child in zip(row.calls, row.calls[1:], strict=False):
            assert story.truth[child].link == "exact"
            assert story.truth[child].parent == parent
    assert [row.conversation for row in sequences.sequences] == sorted(row.conversation for row in sequences.sequences)
    assert sequences.n_trained_tokens == sum(len(recorded[n].sampled_ids) for n in trained)


@settings(max_examples=120, deadline=None, suppress_health_check=SLOW)
@given(stories(), st.sampled_from([0, 2, 8, 1024]))
def test_rows_that_cross_drifts_train_every_sampled_token_once_under_the_prefix_it_was_drawn_from(story, threshold):
    graph = read(story.rollout, story.calls)
    note(repr(story))
    note(repr(graph))
    sequences = cut(graph, Options(roles=ROLES, drift="realign", threshold=threshold))
    recorded = {call.n: call for call in story.calls}
    whole = {n: np.concatenate([call.prompt_ids, call.sampled_ids]) for n, call in recorded.items()}

    seen: dict[int, list[int]] = {n: [] for n in recorded}
    for row in sequences.sequences:
        np.testing.assert_array_equal(row.input_ids, whole[row.calls[-1]])
        assert len(row.input_ids) == len(row.loss_mask) == len(row.logprobs)
        spans = [(span.start, span.end) for span in row.spans]
        assert [start for start, _ in spans] == [0, *(end for _, end in spans[:-1])]
        assert all(start < end for start, end in spans)
        assert spans[-1][1] == len(row.input_ids)
        unseen = row.loss_mask.astype(bool)
        for span in row.spans:
            here = [place for place in range(span.start, span.end) if row.loss_mask[place]]
            unseen[span.start : span.end] = False
            if here:
                # The prefix is the one that the engine scored these ids under.
                assert span.kind == "sampled"
                assert span.call in row.trained
                np.testing.assert_array_equal(row.input_ids[: here[-1] + 1], whole[span.call][: here[-1] + 1])
                first = len(recorded[span.call].prompt_ids)
                assert [row.logprobs[place] for place in here] == [
                    recorded[span.call].logprobs[place - first] for place in here
                ]
                seen[span.call] += [place - first for place in here]
        assert not unseen.any()
        assert np.isnan(row.logprobs[row.loss_mask == 0]).all()
        links = [graph.forest.links[n] for n in row.calls[1:]]
        assert [link.parent for link in links] == list(row.calls[:-1])
        drifts = [link.drift.tokens for link in links if link.drift is not None]
        assert row.drift_crossed == len(drifts)
        assert all(tokens <= threshold for tokens in drifts)

    left = {out.call for out in sequences.left_out}
    for n, places in seen.items():
        assert sorted(places) == ([] if n in left else list(range(len(recorded[n].sampled_ids)))), n
    split = cut(graph, Options(roles=ROLES))
    assert sequences.left_out == split.left_out
    assert sequences.n_trained_tokens == split.n_trained_tokens
    main = cut(graph, Options(drift="realign", threshold=threshold)).sequences
    assert len(main) == numbers(graph.forest, graph.calls_of("main"), threshold=threshold).samples_per_rollout
    assert (sequences.realign_masked.rows > 0) == ("realign_masked" in sequences.findings)


def test_a_loop_is_one_row():
    tape = Tape()
    loop(tape, 3)
    assert rows(tape) == [((0, 1, 2, 3), (0, 1, 2, 3))]
    assert left_out(tape) == {}


def test_a_chain_may_be_longer_than_the_interpreter_s_stack():
    tape = Tape()
    for n in range(1_200):
        ids = np.arange(10 * n + 10, dtype=np.int32)
        tape.say(
            TASK, assistant("a b c"), prompt_ids=ids[: 10 * n + 6], sampled_ids=ids[10 * n + 6 :], usage_prompt=None
        )
    (row,) = cut(tape.graph()).sequences
    assert row.trained == tuple(range(1_200))
    assert row.loss_mask.tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 1, 1] * 1_200


def test_rows_come_conversation_by_conversation_although_calls_interleave():
    tape = Tape()
    asks = assistant("", ("task", {"prompt": "Look at a.py."}), ("task", {"prompt": "Look at b.py."}))
    tape.say(TASK, asks, tools=("bash", "task"))
    looks = {}
    for name in "ab":
        looks[name] = assistant("", ("bash", {"command": f"cat {name}.py"}), ids=name)
        tape.say([system("You help."), user(f"Look at {name}.py.")], looks[name], tools=("bash",))
    for name in "ba":
        seen = [system("You help."), user(f"Look at {name}.py."), looks[name], result("code", looks[name])]
        tape.say(seen, assistant(f"I saw {name}."), tools=("bash",))
    messages = [*TASK, asks, result("I saw a.", asks, 0), result("I saw b.", asks, 1)]
    tape.say(messages, assistant("Both are fine."), tools=("bash", "task"))
    assert rows(tape, roles=("main", "subagent")) == [((0, 5), (0, 5)), ((1, 4), (1, 4)), ((2, 3), (2, 3))]
    assert rows(tape) == [((0, 5), (0, 5))]
    assert left_out(tape) == {1: "role", 2: "role", 3: "role", 4: "role"}


def test_a_reply_that_broke_off_is_trained_only_if_asked_for():
    tape = Tape()
    tape.say(TASK, assistant("Half a"), status="aborted", delivered=False, finish_reason=None)
    tape.say(TASK, assistant("A whole reply."))
    assert rows(tape) == [((1,), (1,))]
    assert left_out(tape) == {0: "aborted"}
    assert rows(tape, aborted="train") == [((0,), (0,)), ((1,), (1,))]


def test_a_reply_that_broke_off_but_was_used_is_trained():
    """The next prompt begins with exactly its prompt and sampled ids: the agent had it."""
    tape = Tape()
    asks = assistant("", ("bash", {"command": "ls"}))
    whole = tape.say(TASK, asks, tools=("bash",), status="aborted", delivered=False, finish_reason=None)
    tape.say([*TASK, asks, result("a", asks)], assistant("Done."), tools=("bash",))
    assert rows(tape) == [((0, 1), (0, 1))]
    found = tape.graph().conversations[0]
    assert ("proved_used", (whole,)) in [(shown.rule, shown.calls) for shown in found.evidence]


def test_a_row_ends_with_the_last_reply_that_is_trained_in_it():
    tape = Tape()
    messages = loop(tape, 1)
    tape.say([*messages, user("More?")], assistant("Half"), tools=("bash",), status="aborted", delivered=False)
    assert rows(tape) == [((0, 1), (0, 1))]
    assert left_out(tape) == {2: "aborted"}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"status": "error"}, "error"),
        ({"status": "stopped"}, "stopped"),
        ({"status": "running", "ended": None}, "running"),
        ({"delivered": False}, "undelivered"),
        ({"delivered": None}, "delivery_unknown"),
        ({"prompt_ids": None}, "no_token_ids"),
        ({"sampled_ids": None, "logprobs": None}, "no_token_ids"),
        ({"logprobs": None}, "no_logprobs"),
        ({"usage_sampled": 99}, "count_mismatch"),
        ({"usage_prompt": 99}, "count_mismatch"),
        ({"logprobs": np.full(2, -0.5, dtype=np.float32)}, "count_mismatch"),
        ({"constrained": ("response_format",)}, "constrained"),
    ],
)
def test_a_call_that_may_not_be_trained_is_left_out_with_its_reason(fields, reason):
    tape = Tape()
    tape.say(TASK, assistant("A reply."), **fields)
    assert rows(tape) == []
    assert left_out(tape) == {0: reason}


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, -9999.0])
def test_a_logprob_that_is_none_leaves_its_call_out(wrong):
    tape = Tape()
    tape.say(TASK, assistant("A reply."))
    tape.calls[0].logprobs[1] = wrong
    assert left_out(tape) == {0: "invalid_logprobs"}


def test_at_a_fork_the_path_that_went_on_trains_what_came_before():
    tape = Tape()
    asks = assistant("", ("bash", {"command": "ls"}))
    tape.say(TASK, asks, tools=("bash",))
    seen = [*TASK, asks, result("a", asks)]
    tape.say(seen, assistant("A draw that was thrown away."), tools=("bash",))
    kept = assistant("", ("bash", {"command": "cat a"}), ids="kept")
    tape.say(seen, kept, tools=("bash",))
    tape.say([*seen, kept, result("b", kept)], assistant("Done."), tools=("bash",))
    assert rows(tape) == [((0, 2, 3), (0, 2, 3))]
    assert left_out(tape) == {1: "discarded"}


def test_where_two_paths_end_the_first_trains_what_they_share():
    tape = Tape()
    asks = assistant("", ("bash", {"command": "ls"}))
    tape.say(TASK, asks, tools=("bash",))
    for listing in ("a", "b"):
        tape.say([*TASK, asks, result(listing, asks)], assistant(f"I see {listing}."), tools=("bash",))
    assert rows(tape) == [((0, 1), (0, 1)), ((0, 2), (2,))]


def test_where_two_paths_go_on_the_first_trains_what_they_share():
    tape = Tape()
    asks = assistant("", ("bash", {"command": "ls"}))
    tape.say(TASK, asks, tools=("bash",))
    branches = {}
    for listing in ("a", "b"):
        seen = [*TASK, asks, result(listing, asks)]
        branches[listing] = [*seen, assistant(f"I see {listing}."), user("Go on.")]
        tape.say(seen, assistant(f"I see {listing}."), tools=("bash",))
    for listing in ("b", "a"):
        tape.say(branches[listing], assistant(f"Done with {listing}."), tools=("bash",))
    assert rows(tape) == [((0, 1, 4), (1, 4)), ((0, 2, 3), (0, 2, 3))]


def test_a_row_ends_where_the_next_call_drifts():
    tape = Tape()
    asks = assistant("", ("bash", {"command": "ls"}))
    tape.say(TASK, asks, tools=("bash",), sampled=[900, 901, 902])
    tape.say([*TASK, asks, result("a", asks)], assistant("Done."), tools=("bash",))
    assert rows(tape) == [((0,), (0,)), ((1,), (1,))]


def test_an_empty_reply_has_nothing_to_train():
    tape = Tape()
    tape.say(TASK, assistant(""), sampled=[])
    assert left_out(tape) == {0: "nothing_sampled"}


def test_unknown_delivery_with_a_child_is_delivered():
    tape = Tape()
    asks = assistant("", ("bash", {"command": "ls"}))
    tape.say(TASK, asks, tools=("bash",), delivered=None)
    tape.say([*TASK, asks, result("a", asks)], assistant("Done."), tools=("bash",))
    assert rows(tape) == [((0, 1), (0, 1))]


def test_unknown_delivery_is_delivery_where_the_reply_came_back_in_other_tokens():
    tape = Tape()
    asks = assistant("", ("bash", {"command": "ls"}))
    tape.say(TASK, asks, tools=("bash",), sampled=[900, 901], delivered=None)
    tape.say([*TASK, asks, result("a", asks)], assistant("Done."), tools=("bash",))
    assert left_out(tape) == {}


def test_a_constrained_reply_is_context_unless_asked_for():
    tape = Tape()
    asks = assistant("", ("bash", {"command": "ls"}))
    tape.say(TASK, asks, tools=("bash",), constrained=("tool_choice",))
    tape.say([*TASK, asks, result("a", asks)], assistant("Done."), tools=("bash",))
    assert rows(tape) == [((0, 1), (1,))]
    assert left_out(tape) == {0: "constrained"}
    assert rows(tape, constrained="train") == [((0, 1), (0, 1))]


def test_an_empty_export_says_why():
    tape = Tape()
    loop(tape, 1, logprobs=None)
    sequences = cut(tape.graph())
    assert sequences.sequences == ()
    assert [(left.call, left.reason) for left in sequences.left_out] == [(0, "no_logprobs"), (1, "no_logprobs")]
    assert sequences.findings == ("no_logprobs", "nothing_trainable")


def test_an_export_of_roles_that_nobody_had_says_so():
    tape = Tape()
    loop(tape, 1)
    sequences = cut(tape.graph(), Options(roles=("subagent",)))
    assert (sequences.sequences, sequences.findings) == ((), ("nothing_trainable",))


@pytest.mark.parametrize(
    ("finish", "stopped", "flag"),
    [
        ("stop", None, False),
        ("length", None, "length"),
        ("stop", Stop(limit="max_calls", at_call=2, stops=1), "limit"),
    ],
)
def test_a_row_that_was_cut_short_says_by_what(finish, stopped, flag):
    tape = Tape(stopped=stopped)
    loop(tape, 1, finish_reason=finish)
    (row,) = cut(tape.graph()).sequences
    assert row.truncated == flag


def test_a_span_is_cut_where_its_weights_change():
    tape = Tape()
    spans = (WeightSpan(version="v1", start=0, end=2), WeightSpan(version="v2", start=2, end=3))
    weights = Weights(start="v1", end="v2", spans=spans)
    tape.say(TASK, assistant("one two three"), weights=weights)
    (row,) = cut(tape.graph()).sequences
    end = len(row.input_ids)
    assert [(span.kind, span.start, span.end, span.weights) for span in row.spans] == [
        ("prompt", 0, end - 4, None),
        ("sampled", end - 4, end - 2, "v1"),
        ("sampled", end - 2, end - 1, "v2"),
        ("sampled", end - 1, end, None),
    ]


def test_a_row_says_what_it_was_sampled_with_and_null_where_that_differs():
    tape = Tape()
    asks = assistant("", ("bash", {"command": "ls"}))
    tape.say(TASK, asks, tools=("bash",), sampling_sent={"temperature": 1.0, "top_p": 0.8})
    sent = {"temperature": 1.0, "top_p": 0.9, "seed": 1}
    tape.say([*TASK, asks, result("a", asks)], assistant("Done."), tools=("bash",), sampling_sent=sent)
    (row,) = cut(tape.graph()).sequences
    assert row.sampling == {"temperature": 1.0, "top_p": None, "seed": None}


def test_rewards_of_calls_stand_with_the_row_that_trains_them():
    tape = Tape(per_call_rewards={"chatcmpl-0": 0.5, "chatcmpl-1#0": 1.0}, reward=0.75, group="g")
    loop(tape, 1)
    sequences = cut(tape.graph())
    (row,) = sequences.sequences
    assert row.call_rewards == {0: 0.5, 1: 1.0}
    assert (sequences.reward, sequences.group, sequences.final) == (0.75, "g", True)


def test_rows_of_an_open_rollout_are_not_final():
    tape = Tape(state="open")
    loop(tape, 1)
    assert cut(tape.graph()).final is False


def drifting(kept: int = 2) -> Tape:
    """Two turns and an answer; the first reply is three ids, of which the second prompt has the first `kept`."""
    tape = Tape()
    head = [1, 9, 3, 100, 2, 3, 1, 10, 3]
    said, echoed = [150, 151, 2], [150, 151, 2][:kept] + [160] * (3 - kept)
    more = [3, 1, 9, 3, 101, 2, 3, 1, 10, 3]
    first = assistant("One."), user("Go on.")
    second = assistant("Two."), user("And on.")
    told = [
        (TASK, first[0], head, said),
        ([*TASK, *first], second[0], [*head, *echoed, *more], [170, 2]),
        ([*TASK, *first, *second], assistant("Three."), [*head, *echoed, *more, 170, 2, *more], [180, 2]),
    ]
    for messages, reply, prompt, sampled in told:
        tape.say(messages, reply, prompt_ids=np.array(prompt, np.int32), sampled=sampled, usage_prompt=None)
    return tape


def test_a_row_that_crosses_a_drift_trains_what_stands_before_the_break():
    sequences = cut(drifting().graph(), Options(drift="realign"))
    own, row = sequences.sequences
    assert (own.calls, own.trained, own.input_ids.tolist()[9:]) == ((0,), (0,), [150, 151, 2])
    assert (own.loss_mask.tolist()[9:], own.drift_crossed) == ([0, 0, 1], 0)
    assert (row.calls, row.trained, row.drift_crossed) == ((0, 1, 2), (0, 1, 2), 1)
    assert row.input_ids.tolist()[9:12] == [150, 151, 160]
    assert row.loss_mask.tolist()[9:12] == [1, 1, 0]
    assert row.n_trained_tokens == 6
    assert [(span.call, span.kind, span.start, span.end) for span in row.spans] == [
        (0, "prompt", 0, 9),
        (0, "sampled", 9, 11),
        (1, "prompt", 11, 22),
        (1, "sampled", 22, 24),
        (2, "prompt", 24, 34),
        (2, "sampled", 34, 36),
    ]
    assert sequences.realign_masked == Masked(tokens=1, rows=1)
    assert "realign_masked" in sequences.findings


def test_a_reply_that_loses_all_of_its_ids_is_context_in_the_row_that_lost_them():
    sequences = cut(drifting(kept=0).graph(), Options(drift="realign"))
    own, row = sequences.sequences
    assert (own.trained, own.n_trained_tokens) == ((0,), 3)
    assert (row.calls, row.trained, row.n_trained_tokens) == ((0, 1, 2), (1, 2), 4)
    assert sequences.realign_masked == Masked(tokens=3, rows=1)


def test_a_drift_over_the_threshold_is_not_crossed():
    tape = drifting(kept=1)
    assert rows(tape, drift="realign", threshold=1) == rows(tape) == [((0,), (0,)), ((1, 2), (1, 2))]
    assert rows(tape, drift="realign", threshold=2) == [((0,), (0,)), ((0, 1, 2), (0, 1, 2))]


def test_what_no_row_needs_breaks_nothing():
    """The last reply broke off: the row ends before it, and so nothing is lost to its prompt."""
    tape = drifting()
    tape.calls = [
        msgspec.structs.replace(call, status="aborted", delivered=False) if call.n else call for call in tape.calls[:2]
    ]
    sequences = cut(tape.graph(), Options(drift="realign"))
    assert [(row.calls, row.trained, row.n_trained_tokens) for row in sequences.sequences] == [((0,), (0,), 3)]
    assert sequences.realign_masked == Masked(tokens=0, rows=0)
    assert "realign_masked" not in sequences.findings


def test_of_two_ways_on_the_one_that_keeps_more_trains_a_reply():
    """One branch has the reply's ids, the other has drifted: no row of its own is needed."""
    tape = drifting()
    whole = [1, 9, 3, 100, 2, 3, 1, 10, 3, 150, 151, 2, 3, 1, 9, 3, 102, 2, 3, 1, 10, 3]
    messages = [*TASK, assistant("One."), user("Another way.")]
    tape.say(messages, assistant("Four."), prompt_ids=np.array(whole, np.int32), sampled=[190, 2], usage_prompt=None)
    assert rows(tape, drift="realign") == [((0, 1, 2), (1, 2)), ((0, 3), (0, 3))]


def test_rows_of_split_have_no_word_of_masking():
    assert cut(drifting().graph()).realign_masked is None


def test_a_tree_has_no_rows():
    with pytest.raises(ValueError, match="no rows"):
        cut(drifting().graph(), Options(drift="tree"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"roles": ("main", "boss")}, "roles is one of main, summary, subagent, auxiliary; not 'boss'"),
        ({"roles": ()}, "roles names at least one of main, summary, subagent, auxiliary"),
        ({"drift": "join"}, "drift is one of split, realign, tree; not 'join'"),
        ({"threshold": -1}, "threshold is a number of tokens, 0 or more; not -1"),
        ({"constrained": "yes"}, "constrained is one of context, train; not 'yes'"),
        ({"aborted": "yes"}, "aborted is one of context, train; not 'yes'"),
    ],
)
def test_an_option_that_is_none_is_refused_by_name(options, says):
    with pytest.raises(ValueError, match=f"^{says}$"):
        Options(**options)


@pytest.mark.parametrize("number", [1, 2, 4, 5, 9, 18, 40, 44, 57])
def test_the_rows_of_a_case(number):
    case = load(number)
    rows = cut(read(case.rollout, case.calls), Options(roles=ROLES)).sequences
    told = [
        {
            "calls": [case.names[n] for n in row.calls],
            "input_ids": row.input_ids.tolist(),
            "loss_mask": row.loss_mask.tolist(),
        }
        for row in rows
    ]
    assert sorted(told, key=lambda row: row["calls"]) == sorted(
        case.expected["sequences"], key=lambda row: row["calls"]
    )


@pytest.mark.parametrize(
    ("number", "trained", "n_rows"), [(7, 8, 2), (41, 4, 1), (42, 14, 3), (46, 9, 2), (48, 6, 3), (50, 2, 1)]
)
def test_the_trained_tokens_of_a_case(number, trained, n_rows):
    case = load(number)
    sequences = cut(read(case.rollout, case.calls), Options(roles=ROLES))
    assert (sequences.n_trained_tokens, len(sequences.sequences)) == (trained, n_rows)


def test_case_52_a_reward_without_tokens_is_loud() -> None:
    case = load(52)
    graph = read(msgspec.structs.replace(case.rollout, reward=1.0), case.calls)
    rows = cut(graph)
    assert len(rows.sequences) == case.expected["rows"]
    assert [(one.call, one.reason) for one in rows.left_out] == [(case.n("c1"), "no_token_ids")]
    assert set(case.expected["reason_per_call"]) == set(case.names)
    levels = {finding.code: finding.level for finding in graph.findings}
    assert levels["nothing_trainable"] == levels["no_token_ids"] == "error"
    assert {"nothing_trainable", "no_token_ids"} <= set(rows.findings)
