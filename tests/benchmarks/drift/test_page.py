"""From rows to the page, the plot and the verdict."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import msgspec
import pytest

from benchmarks.drift import agents, command, cost, page, plot
from benchmarks.drift.command import drifting, dumped
from benchmarks.drift.rows import Case, Compared, Row, nothing, of_rerendered, rerendered
from capture.trial.scenarios import SCENARIOS, Ask, said, user
from tests.benchmarks.drift.small import CHATML, Small

CASE = Case(scenario="plain chat", template="t", agent="chat", served_by="template alone")


def row(mode="engine", **more):
    told = {
        **msgspec.structs.asdict(CASE), "mode": mode, "transitions": 4, "exact": 1, "tokens_mean": 2.5,
        "tokens_max": 7, "fork_frac": 0.0, "realign_frac": 0.75, "samples_per_rollout": 4.0,
        "causes": {"turn_boundary": 3}, "fallback": {}, **more,
    }  # fmt: skip
    return Row(**told)


PINNED = row("pinned", exact=4, tokens_mean=0.0, tokens_max=0, causes={})


def test_a_cell_says_what_drifts_as_rendered_and_pinned():
    assert "| t | 2.5 → 0 |" in page.matrix([row(), PINNED])
    fell = row("pinned", fallback={"no-parent": 3})
    assert "| t | 2.5 → 2.5 (no-parent) |" in page.matrix([row(), fell])
    assert "| t | 0 |" in page.matrix([row(tokens_mean=0.0), PINNED])
    assert "| t | refused |" in page.matrix([nothing(CASE, "engine", "no"), nothing(CASE, "pinned", "no")])
    assert "turn_boundary 3" in page.matrix([row(), PINNED])


def test_tables_have_a_cell_for_each_head():
    served = msgspec.structs.replace(CASE, served_by="vllm 1")
    rows = [
        row(served_by="vllm 1", pinned_to_older=2),
        row("rerender", served_by="vllm 1", exact=3, turns_right=0.25),
        *(nothing(msgspec.structs.replace(served, scenario="images"), mode, "a | b") for mode in ("engine", "pinned")),
        row(served_by="vllm 1", template="other"),
        row("pinned", served_by="vllm 1", template="other", tokens_mean=0.0),
        row(agent="pi 1"),
        row("pinned", agent="pi 1"),
    ]
    for table in (page.served(rows), page.agents(rows)):
        for part in table.split("\n\n"):
            lines = [line for line in part.splitlines() if line.startswith("| ")]
            assert len({line.count(" |") for line in lines}) <= 1, part
    assert "pinned to an older call 2" in page.served(rows)
    # Three of four prompts are right, and a quarter of the turns with their replies.
    assert "| 3 of 4; 25% |" in page.served(rows)
    assert page.served(rows).count("images") == 1
    assert "| other | 2.5 → 0 |" in page.served(rows)
    assert page.agents(rows).count("pi 1") == 2


def test_each_part_of_the_page_is_replaced_and_nothing_else():
    marks = "".join(f"# {name}\n<!-- {name}: begin -->\nold\n<!-- {name}: end -->\n" for name in page.PARTS)
    told = {
        "at": "2026-11-30T04:00:00.000Z", "host": {"cores": 2, "load": 1.0},
        "rows": msgspec.to_builtins([row(), PINNED]), "examples": {},
    }  # fmt: skip
    made = page.with_parts(f"before\n{marks}after\n", told)
    assert made.startswith("before\n# example\n")
    assert made.endswith("after\n")
    assert "old" not in made
    assert "`bin/bench drift`, 2026-11-30, 2 cores." in made
    assert page.with_parts(made, told) == made
    with pytest.raises(ValueError, match="no marks for served"):
        page.with_parts("<!-- example: begin -->\n<!-- example: end -->\n", told)


def test_an_example_is_shown_id_by_id():
    found = {
        "cause": "arguments_reserialised", "at": 3, "tokens": 2, "n_prompt": 2, "n_sampled": 3, "begins": 2,
        "had": [[7, "a|"], [8, "\n"]], "rendered": [[7, "a|"], [9, " "], [10, "b"]],
    }  # fmt: skip
    table = page.example({"qwen3: tool loop": found})
    assert "the next prompt begins with 3; the other 2 are lost" in table
    assert "| 2 | 7 | `a\\|` | 7 | `a\\|` |" in table
    assert "| **3** | 8 | `⏎` | 9 | `␣` |" in table
    assert "| 4 |  |  | 10 | `b` |" in table


def test_a_run_is_json_with_a_line_a_row():
    told = {"benchmark": "drift", "rows": [{"a": "é"}, {"b": 1}], "examples": {}}
    assert json.loads(dumped(told)) == told
    assert dumped(told).count("\n") == 4


def test_the_plot_has_a_bar_for_each_mode_and_is_xml():
    drawn = plot.svg([row(), PINNED, row("rerender", exact=0)], title="a <b>")
    root = ET.fromstring(drawn)
    titles = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["a <b>", "plain chat, rerender: 0%", "plain chat, engine: 25%", "plain chat, pinned: 100%"]


def test_a_pinned_conversation_that_drifts_is_a_failure():
    assert drifting([row(), PINNED]) == []
    assert drifting([row("pinned")]) == ["plain chat, t: 1 of 4 exact"]
    assert drifting([row("pinned", fallback={"closing-differs": 3})]) == []
    assert drifting([row("pinned", scenario="compaction")]) == []


def test_a_call_is_rendered_again_and_compared():
    asked = Ask(messages=[user("hi")], says=said("yes"))
    small = Small()
    prompt = small.one(CHATML, messages=asked.messages)
    sampled = small.one(CHATML, encode="yes<im_end>")
    right = rerendered(small, CHATML, asked, asked.says, prompt, sampled)
    assert right == Compared(prompt_right=True, reply_right=True, lost=0)
    other = rerendered(small, CHATML, asked, asked.says, prompt, [1, 2])
    assert other == Compared(prompt_right=True, reply_right=False, lost=2)
    made = of_rerendered(CASE, [right, other, Compared(prompt_right=False, reply_right=False, lost=2000)])
    assert (made.transitions, made.exact, made.tokens_max) == (3, 2, 2000)
    assert (made.fork_frac, made.realign_frac) == (0.333, 0.333)
    assert (made.prompts_right, made.turns_right) == (0.667, 0.333)


def test_recorded_agents_are_played_call_by_call():
    records = list(agents.records())
    assert {"codex 0.171.0", "opencode 1.18.33", "pi 0.73.1", "qwen-code 0.15.10"} <= {one.agent for one in records}
    for record in records:
        script = agents.script(record)
        asked = [next(script)]
        while True:
            try:
                asked.append(script.send({}))
            except StopIteration:
                break
        assert len(asked) == len(
            [call for call in record.calls if call.status == "complete" and call.reply is not None]
        )
        assert all(one.says["role"] == "assistant" for one in asked)


def test_the_documentation_has_the_last_run():
    told = json.loads(command.DATA.read_text())
    written = command.PAGE.read_text()
    assert page.with_parts(written, told) == written
    rows = [msgspec.convert(one, Row) for one in told["rows"]]
    assert drifting(rows) == []
    # Every scenario is there, under real templates alone and at the real engine.
    for served in ({"template alone"}, {one.served_by for one in rows} - {"template alone"}):
        assert {one.scenario for one in rows if one.served_by in served and one.agent == "chat"} == set(SCENARIOS)
    costs = json.loads(cost.DATA.read_text())
    assert cost.with_section(cost.PAGE.read_text(), costs) == cost.PAGE.read_text()
