"""Findings from code and data, and from notices."""

import pytest

from graph.finders.statements import in_order, make, of_notices, worded
from graph.findings import TABLE
from graph.records import Finding, Notice


def test_a_statement_is_filled_from_the_table():
    assert make("compaction", [7, 3], carries=[2, 6]) == Finding(
        code="compaction",
        level="info",
        calls=(3, 7),
        message="2 calls continue a conversation from a summary of it.",
        data={"carries": [2, 6]},
    )


@pytest.mark.parametrize(
    ("finding", "message"),
    [
        (make("aborted_calls", [1], used=[]), "1 call broke off before its end."),
        (make("aborted_calls", [1, 2], used=[]), "2 calls broke off before their end."),
        (make("undelivered_calls", [1]), "The finished reply of 1 call never reached the agent."),
        (make("subagents", [1, 2], conversations=1, parents=[]), "1 conversation was started by a tool call."),
        (make("forks", [1, 2], forks=1, resample=1, branch=0), "1 fork: 1 resampled, 0 branched."),
        (make("realign_masked", tokens=7, rows=1), "Crossing drifts masks 7 tokens, trained in 1 row apart."),
    ],
)  # fmt: skip
def test_one_is_told_from_more(finding, message):
    assert finding.message == message


def test_no_statement_has_brackets_left():
    for row in TABLE.values():
        for number in (1, 2):
            text = worded(row.text, dict.fromkeys(["count", *(key for key, _ in row.data)], number))
            assert not set("[]|") & set(text), row.code
            assert "(s)" not in text


def test_a_code_of_no_row_is_an_error():
    with pytest.raises(KeyError):
        make("no_such_code")


def test_in_tier_eval_another_level_may_count():
    assert make("no_token_ids", [0]).level == "error"
    assert make("no_token_ids", [0], tier="eval").level == "info"


def test_notices_that_say_the_same_are_one_finding():
    refused = {"reason": "a media URL", "param": "messages"}
    notices = [
        Notice(code="request_refused", calls=(4,), data=refused),
        Notice(code="request_refused", calls=(2,), data=dict(reversed(refused.items()))),
        Notice(code="request_refused", calls=(3,), data={"reason": "too large"}),
    ]
    found = of_notices(notices)
    assert [(finding.calls, finding.message) for finding in found] == [
        ((2, 4), "A request was refused: a media URL."),
        ((3,), "A request was refused: too large."),
    ]


def test_notices_in_any_order_are_equal():
    notices = [Notice(code="expired"), Notice(code="request_refused", calls=(1,)), Notice(code="expired", calls=(2,))]
    assert of_notices(notices) == of_notices(notices[::-1])


def test_a_notice_may_lack_what_its_text_names():
    (found,) = of_notices([Notice(code="request_refused")])
    assert found.message == "A request was refused: unknown."


def test_a_notice_of_a_code_that_is_not_known_is_kept():
    (found,) = of_notices([Notice(code="from_the_future", calls=(1,), data={"x": 1})])
    assert (found.code, found.level, found.calls, found.data) == ("from_the_future", "info", (1,), {"x": 1})


def test_findings_are_in_the_table_s_order_and_the_unknown_last():
    found = [
        *of_notices([Notice(code="a_new_one")]),
        make("engine_errors", [1]),
        make("retries", [2]),
        make("retries", [1]),
    ]
    codes = [(finding.code, finding.calls) for finding in in_order(found)]
    assert codes == [("retries", (1,)), ("retries", (2,)), ("engine_errors", (1,)), ("a_new_one", ())]
