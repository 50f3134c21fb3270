"""Tables and forests as text: what is expected is what a person sees."""

import io
import re
import textwrap

from hypothesis import given
from hypothesis import strategies as st

from capture import terminal
from capture.colour import Paint


def call(n, parent=None, **rest):
    """A call of a graph's JSON form; what isn't given is ordinary."""
    form = {
        "n": n, "parent": parent, "choice": 0, "status": "complete", "link": "root" if parent is None else "exact",
        "carries": [], "conversation": 0, "fork": None, "discarded": False, "n_prompt": 10 * (n + 1), "n_sampled": 5,
        "drift": None, "finish_reason": "stop",
    }  # fmt: skip
    return form | rest


def conversation(n, root, role, kind=None, parent_call=None, calls=(), evidence=()):
    return {
        "n": n, "root": root, "role": role, "kind": kind, "parent_call": parent_call, "calls": list(calls),
        "evidence": list(evidence),
    }  # fmt: skip


def graph(calls, conversations, forks=(), findings=()):
    drift = {"transitions": 4, "exact": 3, "tokens_mean": 1.75, "tokens_max": 7}
    return {
        "calls": calls, "conversations": conversations, "forks": list(forks), "findings": list(findings),
        "drift": drift, "rollout": {"id": "r1"},
    }  # fmt: skip


def drawn(text):
    return textwrap.dedent(text).strip("\n")


def test_a_table_lines_up_and_escapes():
    text = terminal.table(("name", ">count"), [("a", 1_200), ("b\x1b[2J", None), ("漢字", 3)])
    assert text == drawn("""
        name      count
        a         1,200
        b\\x1b[2J      -
        漢字          3
    """)


def test_a_whole_rollout():
    calls = [
        call(0, finish_reason="tool_calls"),
        call(1, conversation=1),
        call(2, 0),
        call(3, conversation=2),
        call(4, 2, fork="retry", status="aborted", discarded=True, finish_reason=None),
        call(5, 2, fork="retry", link="drift", drift={"tokens": 1234, "at": 9, "where": "prompt", "cause": "unknown"}),
        call(6, 5, link="compaction", carries=[5]),
        call(7, conversation=None, status="stopped", n_prompt=None, n_sampled=None, finish_reason=None),
    ]
    conversations = [
        conversation(0, 0, "main", calls=[0, 2, 4, 5, 6]),
        conversation(1, 1, "auxiliary", "title", calls=[1]),
        conversation(2, 3, "subagent", parent_call=2, calls=[3]),
    ]
    forks = [{"at": 2, "kind": "retry", "children": [4, 5], "kept": 5}]
    findings = [{"level": "warn"}, {"level": "info"}, {"level": "info"}]
    assert terminal.forest(graph(calls, conversations, forks, findings)) == drawn("""
               call  role             link                 prompt + sampled  status
        ●         0  main             root                           10 + 5  complete
        │ ●       1  auxiliary title  root                           20 + 5  complete
        ●         2  main             exact                          30 + 5  complete
        ├─╮
        │ │ ●     3  subagent         root                           40 + 5  complete  ← 2
        │ ×       4  main             exact                          50 + 5  aborted   retry · discarded
        ●         5  main             drift 1,234 unknown            60 + 5  complete  retry, kept
        ●         6  main             compaction                     70 + 5  complete  carries 5
        ■         7  -                root                            ? + ?  stopped

        main: 3 of 4 transitions exact, drift 1.75 tokens in the mean, 7 at most
        findings: 1 warn, 2 info (treering rollout findings r1)
    """)


def test_several_children_leave_their_parent_at_once_and_cross_what_runs():
    calls = [call(0), call(1, conversation=1), call(2, 0), call(3, 0), call(4, 1, conversation=1), call(5, 0)]
    rows = [line for pair in terminal.lanes(calls, {5}) for line in pair if line]
    assert rows == [
        "●",
        "├─┬─╮",
        "│ │ │ ●",
        "│ ● │ │",
        "│   ● │",
        "│     ●",
        "●",
    ]


def test_a_branch_crosses_a_lane_between():
    calls = [call(0), call(1, conversation=1), call(2, 0), call(3, 2), call(4, 1, conversation=1), call(5, 2)]
    rows = [line for pair in terminal.lanes(calls, set()) for line in pair if line]
    assert rows == ["●", "│ ●", "● │", "├─┼─╮", "● │ │", "  ● │", "    ●"]


def test_evidence_says_why():
    evidence = [{"rule": "tool_result", "calls": [2], "detail": "its reply stands in the result"}]
    text = terminal.forest(graph([call(0)], [conversation(0, 0, "main", calls=[0], evidence=evidence)]), evidence=True)
    assert text.endswith("conversation 0: main, calls 0\n  tool_result: its reply stands in the result (calls 2)")


def test_a_rollout_without_calls():
    assert terminal.forest(graph([], [])) == "no calls"
    told = terminal.forest(graph([], [], findings=[{"level": "error"}]))
    assert told == "no calls\nfindings: 1 error (treering rollout findings r1)"


def test_colour_says_how_calls_ended_and_moves_nothing():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    calls = [call(0), call(1, 0, status="aborted"), call(2, 1, status="error")]
    form = graph(calls, [conversation(0, 0, "main", calls=[0, 1, 2])], findings=[{"level": "warn"}])
    painted = terminal.forest(form, paint=Paint(Terminal(), {}))
    assert "\x1b[32mcomplete\x1b[0m" in painted
    assert "\x1b[33maborted\x1b[0m" in painted
    assert "\x1b[31merror\x1b[0m" in painted
    assert "\x1b[33m1 warn\x1b[0m" in painted
    assert re.sub(r"\x1b\[\d*m", "", painted) == terminal.forest(form)
    assert terminal.forest(form, paint=Paint(Terminal(), {"NO_COLOR": "1"})) == terminal.forest(form)
    found = [{"level": "warn", "code": "drift", "calls": [1], "message": "It warns: warn."}]
    lines = terminal.findings(found, paint=Paint(Terminal(), {}))
    assert "\x1b[33mwarn\x1b[0m   drift" in lines
    assert re.sub(r"\x1b\[\d*m", "", lines) == terminal.findings(found)


def test_findings_as_a_table():
    found = [{"level": "warn", "code": "drift", "calls": [1, 2], "message": "Drift."}]
    assert terminal.findings(found).splitlines()[1].split() == ["warn", "drift", "1,", "2", "Drift."]
    assert terminal.findings([]) == "no findings"


def test_a_terminal_without_unicode_gets_ascii():
    text = "●─┼─╮ ← 漢"
    assert terminal.fit(text, "utf-8") == text
    assert terminal.fit(text, "ascii") == "*-+-+ < \\u6f22"
    assert terminal.fit(text, None).isascii()


@given(st.data())
def test_every_call_has_one_mark_below_its_parent(data):
    count = data.draw(st.integers(1, 30))
    parents = [data.draw(st.none() | st.integers(0, n - 1)) if n else None for n in range(count)]
    calls = [call(n, parent) for n, parent in enumerate(parents)]
    kept = data.draw(st.sets(st.integers(0, count - 1)))
    drawn = terminal.lanes(calls, kept)
    assert len(drawn) == count
    lanes = [row.index("●") // 2 for row, _ in drawn]
    for n, (row, below) in enumerate(drawn):
        assert row.count("●") == 1
        heirs = [m for m, parent in enumerate(parents) if parent == n]
        # One child goes on in the lane; each other leaves it right below.
        assert sum(lanes[m] == lanes[n] for m in heirs) == bool(heirs)
        assert below.count("╮") + below.count("┬") == max(0, len(heirs) - 1)
        for m in heirs:
            # From the parent's row to the child's, its lane is held.
            for between, _ in drawn[n + 1 : m]:
                assert between[2 * lanes[m]] == "│"


def test_what_to_do_stands_below_the_findings_that_ask_for_it():
    said = {"calls": [0], "message": "It broke."}
    found = [
        {"code": "aborted_calls", "level": "warn", "hint": "Raise it.", **said},
        {"code": "aborted_calls", "level": "warn", "hint": "Raise it.", **said},
        {"code": "retries", "level": "info", "hint": "Nothing.", **said},
        {"code": "of_an_older_one", "level": "error", **said},
    ]
    assert terminal.findings(found).splitlines()[5:] == ["", "aborted_calls: Raise it."]
