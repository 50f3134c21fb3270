"""A kept rollout has short texts, and each still stands where it stood."""

import copy

import pytest

from graph.view import graph_json
from tests.graph import corpus
from tests.graph.tape import Tape, assistant, result, system, user
from tests.real import keep_forest
from tests.real.keep_forest import HEAD, LONG, TAIL, shortened

LIST = "\n".join(f"line {n} of a long list" for n in range(200))
REPORT = "I looked at each of them, and found nothing."


def test_a_long_text_is_cut_to_its_ends():
    text = "a" * LONG + "b" * LONG
    short = shortened([text])[text]
    assert short.startswith("a" * HEAD)
    assert short.endswith("b" * TAIL)
    assert len(short) < LONG


def test_texts_that_differ_differ_afterwards():
    texts = ["a" * LONG + middle + "b" * LONG for middle in ("one", "two")]
    assert len(set(shortened(texts).values())) == 2


def test_a_text_stands_afterwards_where_it_stood():
    transcript = f"{LIST}\n[Assistant]: {REPORT}\n{LIST}\n{LIST}"
    short = shortened([transcript, LIST, REPORT])
    assert short[REPORT] == REPORT
    assert short[transcript].count(short[LIST]) == 3
    assert REPORT in short[transcript]
    assert len(short[transcript]) < len(LIST)


def test_a_short_text_stays_where_it_is_a_line():
    transcript = f"{LIST}\nYes.\n{LIST[::-1]}"
    assert "\nYes.\n" in shortened([transcript, "Yes."])[transcript]


def test_a_text_within_a_text_within_a_text():
    inner = f"{REPORT} {'And so on. ' * 100}"
    outer = f"{LIST}{inner}{LIST[::-1]}"
    short = shortened([outer, inner, REPORT])
    assert REPORT in short[inner.strip()] in short[outer]


# What the control plane would tell of a rollout, made from a tape's graph.


class Plane:
    """Answers from a tape, one second a reading of its counter."""

    def __init__(self, tape, passed):
        graph = tape.graph()
        self.form = graph_json(graph)
        self.calls = {}
        for call, (messages, reply) in zip(self.form["calls"], passed, strict=True):
            n = call["n"]
            kept = graph.forest.calls[n]
            call["started_at"] = f"2026-01-01T00:00:{kept.arrived:02}.000Z"
            call["ended_ms"] = (kept.ended - kept.arrived) * 1000.0
            self.calls[n] = {
                **call,
                "prompt_ids": graph.forest.prompt_ids(n).tolist(),
                "sampled_ids": kept.sampled_ids.tolist(),
                "logprobs": kept.logprobs.tolist(),
                "usage": {"prompt_tokens": kept.usage_prompt, "completion_tokens": kept.usage_sampled},
                "request": {"messages": messages, "tools": [{"type": "function", "function": {"name": "bash"}}]},
                "reply": {"choices": [{"index": 0, "message": reply}]},
            }

    async def control(self, method, path):
        assert method == "GET"
        if path.endswith("/graph"):
            return self.form
        if "/calls/" in path:
            return self.calls[int(path.rpartition("/")[2])]
        return self.form["rollout"]


@pytest.fixture
def plane():
    """A main loop that reads a long list, and its subagent, which reports."""
    tape, passed = Tape(), []

    def say(messages, reply):
        tape.say(messages, reply, tools=("bash",))
        passed.append((copy.deepcopy(messages), reply))

    acts = assistant("", ("bash", {"command": "ls"}), ("task", {"prompt": "Look at all that there is."}))
    main = [system("You act. " * 200), user("Look into it, please.")]
    say(main, acts)
    say([main[0], user("Look at all that there is.")], assistant(REPORT))
    say([*main, acts, result(LIST, acts), result(f"<result>\n{REPORT}\n</result>", acts, 1)], assistant("It is done."))
    return Plane(tape, passed)


async def test_a_record_gives_the_graph_that_it_was_made_from(plane):
    record = await keep_forest.fetch(plane.control, "r", labels=None, about="a tape")
    assert [label.role for label in record.labels.conversations] == ["main", "subagent"]
    assert record.labels.parents == {2: 0}
    assert all(len(str(message["content"])) < LONG for message in record.messages)
    prompt = record.calls[2].prompt
    assert prompt is not None
    assert prompt.of == 0
    ids = corpus.graph_of(record).forest.prompt_ids(2)
    assert ids is not None
    assert ids.tolist() == plane.calls[2]["prompt_ids"]


async def test_a_record_that_would_say_something_else_is_refused(plane):
    plane.form["conversations"][1]["role"] = "auxiliary"
    with pytest.raises(ValueError, match="conversations aren't the rollout's"):
        await keep_forest.fetch(plane.control, "r", labels=None, about="a tape")
