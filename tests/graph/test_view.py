"""The JSON forms, key by key."""

import pytest

from graph.budget import budget_left
from graph.findings import TABLE
from graph.records import Notice, Stop
from graph.view import call_json, findings_json, graph_json, rollout_json
from tests.graph.tape import Tape, assistant, result, user


def told() -> Tape:
    """One tool call and an answer; the first call was sent again after a hang-up."""
    tape = Tape(limits={"max_calls": 10, "max_output_tokens": 100})
    asks = assistant("", ("bash", {"command": "ls"}))
    tape.say([user("Go")], assistant("I wi"), tools=("bash",), status="aborted", delivered=False, finish_reason=None)
    tape.say([user("Go")], asks, tools=("bash",))
    tape.say([user("Go"), asks, result("a", asks)], assistant("Done."), tools=("bash",))
    bare = {"prompt_ids": None, "sampled_ids": None, "logprobs": None, "usage_prompt": None, "usage_sampled": None}
    tape.say([user("Go")], None, status="error", finish_reason=None, **bare)
    return tape


def test_the_graph_has_the_contract_s_keys():
    form = graph_json(told().graph())
    assert list(form) == ["version", "rollout", "calls", "conversations", "forks", "findings", "drift"]
    assert list(form["rollout"]) == [
        "id", "group", "labels", "state", "tier", "tier_reason", "model", "logprobs_mode", "incomplete", "reward",
        "per_call_rewards", "reward_details", "stopped", "n_calls", "n_main_calls", "n_tool_calls",
        "n_conversations", "n_prompt_tokens", "n_sampled_tokens", "n_distinct_tokens", "created_at", "first_call_at",
        "last_call_at", "closed_at", "budget_left", "limits", "task",
    ]  # fmt: skip
    assert list(form["calls"][0]) == [
        "n", "id", "choice", "status", "delivered", "link", "parent", "carries", "conversation", "fork", "discarded",
        "n_prompt", "n_sampled", "n_shared", "drift", "pinned", "finish_reason", "dialect", "streamed", "engine",
        "model_asked", "weights", "sampling", "constrained", "repairs", "started_at", "queued_ms", "first_token_ms",
        "ended_ms", "hints",
    ]  # fmt: skip
    assert list(form["conversations"][0]) == [
        "n", "root", "role", "kind", "trainable", "parent_call", "calls", "evidence",
    ]  # fmt: skip
    assert list(form["conversations"][0]["evidence"][0]) == ["rule", "calls", "detail"]
    assert list(form["findings"][0]) == ["code", "level", "calls", "message", "data", "means", "hint"]
    assert list(form["drift"]) == [
        "transitions", "exact", "tokens_mean", "tokens_max", "fork_frac", "realign_frac", "samples_per_rollout",
    ]  # fmt: skip


def test_the_graph_s_values():
    form = graph_json(told().graph())
    aborted, kept, answer, error = form["calls"]
    assert (aborted["status"], aborted["delivered"], aborted["fork"], aborted["discarded"]) == (
        "aborted", False, "retry", True,
    )  # fmt: skip
    assert (kept["link"], kept["parent"], kept["fork"], kept["discarded"]) == ("root", None, "retry", False)
    assert (answer["link"], answer["parent"], answer["n_shared"]) == ("exact", 1, kept["n_prompt"] + kept["n_sampled"])
    assert (error["status"], error["conversation"], error["link"]) == ("error", None, "root")
    assert form["forks"] == [{"at": None, "kind": "retry", "children": [0, 1], "kept": 1}]
    (conversation,) = form["conversations"]
    assert (conversation["root"], conversation["calls"], conversation["role"]) == (1, [0, 1, 2], "main")
    assert form["drift"]["transitions"] == form["drift"]["exact"] == 1


def test_the_rollout_counts():
    graph = told().graph()
    form = rollout_json(graph.rollout, graph)
    prompts = [len(call.prompt_ids) for call in told().calls if call.prompt_ids is not None]
    sampled = [len(call.sampled_ids) for call in told().calls if call.sampled_ids is not None]
    assert (form["n_calls"], form["n_main_calls"], form["n_tool_calls"], form["n_conversations"]) == (4, 3, 1, 1)
    assert form["n_prompt_tokens"] == sum(prompts)
    assert form["n_sampled_tokens"] == sum(sampled)
    # All calls share the first prompt; the aborted reply and the last call add to it.
    assert form["n_distinct_tokens"] == prompts[2] + sampled[2] + sampled[0]
    assert form["budget_left"] == {"max_calls": 7}
    assert form["stopped"] is None
    given = graph_json(graph)["rollout"]
    assert given == {**form, "limits": {"max_calls": 10, "max_output_tokens": 100}, "task": "Go"}


def test_errors_stops_and_further_choices_use_no_budget():
    tape = told()
    tape.say([user("Go")], assistant("Stopped."), status="stopped")
    tape.say([user("Go")], assistant("Two."), choice=1)
    assert budget_left(tape.rollout, tape.calls) == {"max_calls": 7}


def test_a_budget_is_never_below_nothing():
    tape = Tape(limits={"max_calls": 1})
    for _ in range(2):
        tape.say([user("Go")], assistant("Gone."))
    assert budget_left(tape.rollout, tape.calls) == {"max_calls": 0}


def test_without_a_limit_there_is_no_budget():
    assert budget_left(Tape().rollout, []) == {}


def test_a_stop_is_shown():
    graph = Tape(stopped=Stop(limit="max_calls", at_call=3, stops=2)).graph()
    assert rollout_json(graph.rollout, graph)["stopped"] == {"limit": "max_calls", "at_call": 3, "stops": 2}


def test_a_finished_reply_that_never_arrived_is_undelivered():
    tape = Tape()
    tape.say([user("Go")], assistant("Gone."), delivered=False)
    assert call_json(tape.graph(), 0)["status"] == "undelivered"


def test_an_eval_call_has_the_engine_s_counts_or_none():
    tape = Tape(tier="eval")
    bare = {"prompt_ids": None, "sampled_ids": None, "logprobs": None}
    tape.say([user("Go")], assistant("Gone."), **bare, usage_prompt=12, usage_sampled=3)
    tape.say([user("Stay")], assistant("Here."), **bare, usage_prompt=None, usage_sampled=None)
    graph = tape.graph()
    assert [(call_json(graph, n)["n_prompt"], call_json(graph, n)["n_sampled"]) for n in (0, 1)] == [
        (12, 3),
        (None, None),
    ]


def test_sampling_values_that_nobody_saw_are_null():
    tape = Tape()
    seen = {"temperature": 0.7, "max_tokens": 100}
    tape.say([user("Go")], assistant("Gone."), sampling_asked=seen, sampling_sent={**seen, "temperature": 1.0})
    told = call_json(tape.graph(), 0)["sampling"]
    unseen = dict.fromkeys(
        ["top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed"]
    )
    assert told["asked"] == {**unseen, "temperature": 0.7, "max_tokens": 100}
    assert told["sent"] == {**unseen, "temperature": 1.0, "max_tokens": 100}


def test_a_call_that_is_none():
    with pytest.raises(KeyError):
        call_json(told().graph(), 9)


def test_findings_stand_in_the_table_s_order():
    found = [finding["code"] for finding in findings_json(told().graph())]
    assert found == ["retries", "discarded_calls", "sampling_unpinned", "aborted_calls", "engine_errors"]


def test_the_choices_of_one_request_share_its_prompt():
    tape = Tape()
    for choice in (0, 1):
        tape.say([user("Go")], assistant(f"Draw {choice}."), choice=choice, id="chatcmpl-x", arrived=1)
    graph = tape.graph()
    form = rollout_json(graph.rollout, graph)
    assert form["n_prompt_tokens"] == len(tape.calls[0].prompt_ids)
    assert form["n_sampled_tokens"] == sum(len(call.sampled_ids) for call in tape.calls)


def test_a_finding_says_what_it_means_and_what_to_do():
    tape = told()
    tape.notices.append(Notice(code="of_a_newer_version"))
    (*known, unknown) = findings_json(tape.graph())
    for finding in known:
        row = TABLE[finding["code"]]
        assert (finding["means"], finding["hint"]) == (row.means, row.do)
    assert (unknown["code"], unknown["means"], unknown["hint"]) == ("of_a_newer_version", "", "")
