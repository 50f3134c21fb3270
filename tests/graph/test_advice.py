"""What would end a drift: each rule says its setting where it saves something, and nothing elsewhere."""

from __future__ import annotations

import pytest

from graph.advice import FLAGS, ONE_END, REASONS, SETTINGS, advise
from graph.causes import CAUSES
from graph.survey import Outline, outline


def chain(*drifts, **more):
    """A main conversation: each call goes on from the one before, exactly (None) or by (tokens, cause).

    Each call adds 100 tokens to the prompt and samples 10.
    """
    calls = []
    for n, drift in enumerate((None, *drifts)):
        calls.append(
            {
                "n": n, "status": "complete", "conversation": 0, "discarded": False, "constrained": False,
                "link": "root" if not n else "drift" if drift else "exact", "parent": n - 1 if n else None,
                "n_prompt": 100 * (n + 1), "n_sampled": 10, "pinned": None,
                "drift": drift and {"tokens": drift[0], "at": 100 * n + 10 - drift[0], "where": "sampled",
                                    "cause": drift[1]},
            }
        )  # fmt: skip
    return outline({"calls": calls, "conversations": [{"n": 0, "role": "main"}], "findings": [], **more})


def said(*outlines: Outline, **options):
    return {advice.rule: advice for advice in advise(outlines, **options)}


def test_what_chains_needs_nothing():
    assert advise([chain(None, None)]) == ()
    assert advise([]) == ()


def test_small_drifts_of_a_template_may_be_crossed_at_the_smallest_threshold_that_takes_all():
    # The two last ids of a reply, and the very last one: what is lost behind a break is a row of its own.
    found = said(chain((0, "turn_boundary"), (0, "turn_boundary"), None))["threshold"]
    assert found.setting == "--drift realign --threshold 0"
    assert found.saves.rows == 2
    # Three rows of 110, 210 and 410 tokens become one of 410.
    assert found.saves.tokens == 110 + 210


def test_a_break_inside_the_prompt_loses_the_whole_reply_so_realign_saves_nothing():
    assert "threshold" not in said(chain((12, "text_retokenised"), (12, "text_retokenised")))


def test_what_an_agent_changed_is_no_reason_to_cross():
    assert "threshold" not in said(chain((0, "history_pruned")))


def test_what_is_rendered_anew_is_ended_by_pinning():
    found = said(chain((12, "arguments_reserialised"), None, (10, "history_pruned")))["pinned"]
    assert found.setting == "tokens=pinned"
    assert "arguments_reserialised" in found.because
    assert "history_pruned" not in found.because
    assert (found.saves.transitions, found.saves.rows, found.saves.tokens) == (1, 1, 110)


@pytest.mark.parametrize("cause", ["end_token", "history_pruned", "system_changed", "media", "unknown"])
def test_what_pinning_can_not_end_it_is_not_said_to(cause):
    assert "pinned" not in said(chain((12, cause)))


def test_thinking_that_is_dropped_may_be_kept_by_a_flag_of_the_template():
    drifts = chain((10, "reasoning_stripped"))
    assert all(name in said(drifts)["template"].setting for name in FLAGS)
    known = said(drifts, template="{%- if preserve_thinking %}…")["template"]
    assert known.setting == 'chat_template_kwargs: {"preserve_thinking":true}'
    assert known.saves.transitions == 1
    assert "template" not in said(drifts, template="{{ messages }}")
    assert "template" not in said(chain((10, "turn_boundary")))


@pytest.mark.parametrize("cause", sorted(SETTINGS))
def test_what_an_agent_does_is_for_the_agent_to_end(cause):
    found = said(chain((60, cause), None))["agent"]
    assert (found.setting, found.because) == (SETTINGS[cause], CAUSES[cause])
    assert (found.saves.transitions, found.saves.rows) == (1, 1)


def test_another_end_token_is_for_the_engine_to_ban():
    found = said(chain((1, "end_token")))
    assert set(found) == {"engine"}
    assert found["engine"].setting == ONE_END
    assert (found["engine"].saves.transitions, found["engine"].saves.rows) == (1, 1)


def test_a_volatile_line_is_named_with_the_setting_that_ends_it():
    line = "x-anthropic-billing-header: cc_version=1; cch=abc;"
    finding = {"code": "volatile_prefix", "calls": [1, 2], "data": {"line": line, "setting": "HEADER=0"}}
    drifts = [(100, "system_changed"), (200, "system_changed")]
    found = said(chain(*drifts, findings=[finding]))["agent"]
    assert found.setting == "HEADER=0"
    assert line in found.because
    assert found.saves.transitions == 2
    unknown = {**finding, "data": {"line": None, "setting": None}}
    assert said(chain(*drifts, findings=[unknown]))["agent"].setting.startswith("take out of the prompt")


@pytest.mark.parametrize("reason", sorted(REASONS))
def test_of_what_could_not_be_pinned_it_is_said_what_ends_it(reason):
    finding = {"code": "pin_fallback", "calls": [1], "data": {"reason": reason}}
    found = said(chain((10, "unknown"), findings=[finding]))["reason"]
    assert found.setting == REASONS[reason]
    assert reason in found.because


def test_the_greatest_saving_comes_first():
    found = advise([chain((12, "text_retokenised"), (12, "text_retokenised"), (12, "history_pruned"))])
    assert [advice.rule for advice in found] == ["pinned", "agent"]
    assert [advice.saves.rows for advice in found] == [2, 1]
