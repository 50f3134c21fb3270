"""Which agents, dialects and features are held by a test: the table of docs/conformance.md, made from the tests' names.

    python -m tests.conformance

Rules
1. A tick is a claim with a test behind it: below, feature by feature, stand the tests that show it.
2. A claim whose test is gone, is skipped, or is expected to fail is an error, never a tick.
3. An empty cell says that no test shows it, often since the program or the dialect has no such thing.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "conformance.md"
TICK = "✓"

HEAD = """\
# What is shown to work

Made by `python -m tests.conformance` from the tests that are named here, all of which `bin/test` runs; one more test
compares. An empty cell: no test shows it, often since the program or the dialect has no such thing.

## Agents

The real programs, headless, set up as `treering agents` prints it, against the appliance on the scripted engine.
"""

MIDDLE = """
## Dialects

As each dialect's official client understands it.
"""

NO_TICK = frozenset(("skip", "skipif", "xfail"))
"""Marks of tests that show nothing."""


class Row(NamedTuple):
    """What one program or dialect is shown to do."""

    name: str
    # What stands beside the name: an agent's dialect, a dialect's judge.
    beside: str
    file: str
    # Feature → the test that shows it, in `file` or as `file::name`.
    shown: Mapping[str, str]


AGENT_FEATURES = {
    "tools": "a tool call, a second one, a final answer",
    "streamed": "its replies were streamed, all but those that it asks for whole",
    "ids": "links and drift lie exactly where the engine's ids part",
    "said": "what the agent printed or kept is what the engine said",
    "echo": "how its own turns come back in its next request, compared with the reply",
    "drift": "each drift has the cause that the messages show",
    "roles": "each conversation has the role that it had for the agent",
    "subagents": "subagents are told apart and hang on the call that started them",
    "title": "the title call is auxiliary and leaves main alone",
    "compaction": "the conversation goes on from the summary",
    "trained": "what main sampled is trained, once, and nothing else is",
    "interrupt": "a reply that the agent breaks off: the engine's request is dropped, and what came is not trained",
    "broken stream": "a stream that breaks at the engine is no whole reply to the agent",
}

AGENTS = (
    Row("opencode", "chat", "tests/real/test_opencode.py", {
        "tools": "test_the_session_had_all_that_it_was_to_have",
        "streamed": "test_the_session_had_all_that_it_was_to_have",
        "ids": "test_drift_is_where_the_ids_part",
        "said": "test_the_agent_keeps_what_the_engine_said",
        "drift": "test_drift_has_the_cause_that_the_messages_show",
        "roles": "test_each_conversation_is_named_for_what_it_was",
        "subagents": "test_data_flow_shows_a_subagent_on_both_its_ends",
        "title": "test_each_conversation_is_named_for_what_it_was",
        "compaction": "test_compaction_goes_on_from_the_summary",
        "trained": "test_every_sampled_token_of_main_is_trained_once_and_nothing_else_is",
        "interrupt": "test_an_abort_drops_the_engines_request",
    }),
    Row("codex", "responses", "tests/real/test_codex.py", {
        "tools": "test_the_run_had_all_that_it_was_to_have",
        "streamed": "test_the_run_had_all_that_it_was_to_have",
        "ids": "test_each_thread_is_a_conversation",
        "said": "test_codex_prints_what_the_engine_said",
        "echo": "test_codex_sends_back_to_the_letter_what_the_engine_said",
        "drift": "test_every_drift_has_a_cause",
        "roles": "test_each_thread_is_a_conversation",
        "subagents": "test_each_thread_is_a_conversation",
        "compaction": "test_a_compaction_stays_in_main_and_goes_on_from_the_summary",
        "trained": "test_main_is_trained_and_nothing_else",
        "interrupt": "test_an_interrupt_drops_the_engines_request",
        "broken stream": "test_after_a_broken_stream_codex_asks_again_with_what_was_done",
    }),
    Row("claude-code", "messages", "tests/real/test_claude_code.py", {
        "tools": "test_the_run_had_all_that_it_was_to_have",
        "streamed": "test_the_run_had_all_that_it_was_to_have",
        "ids": "test_each_agent_is_a_conversation",
        "said": "test_claude_code_prints_what_the_engine_said",
        "drift": "test_only_what_is_no_longer_as_it_was_said_drifts",
        "roles": "test_each_agent_is_a_conversation",
        "subagents": "test_data_flow_shows_a_subagent_on_both_its_ends",
        "title": "test_each_agent_is_a_conversation",
        "compaction": "test_a_compaction_stays_in_main_and_goes_on_from_the_summary",
        "trained": "test_main_is_trained_and_nothing_else",
        "interrupt": "test_an_interrupt_drops_the_engines_request",
        "broken stream": "test_claude_code_takes_no_broken_stream_for_a_whole_one",
    }),
    Row("gemini-cli", "gemini", "tests/real/test_gemini_cli.py", {
        "tools": "test_the_run_had_all_that_it_was_to_have",
        "streamed": "test_the_run_had_all_that_it_was_to_have",
        "ids": "test_main_and_subagent_are_told_apart",
        "said": "test_gemini_cli_prints_what_the_engine_said",
        "echo": "test_thoughts_are_left_out_of_what_comes_back",
        "roles": "test_main_and_subagent_are_told_apart",
        "subagents": "test_main_and_subagent_are_told_apart",
        "compaction": "test_a_compaction_goes_on_from_the_summary",
        "trained": "test_main_is_trained_and_nothing_else",
        "interrupt": "test_an_interrupt_drops_the_engines_request",
        "broken stream": "test_gemini_cli_takes_no_broken_stream_for_a_whole_one",
    }),
    Row("qwen-code", "chat", "tests/real/test_qwen_code.py", {
        "tools": "test_the_session_had_all_that_it_was_to_have",
        "streamed": "test_the_session_had_all_that_it_was_to_have",
        "ids": "test_ids_are_whole",
        "said": "test_qwen_code_printed_what_the_engine_said",
        "echo": "test_a_turn_comes_back_with_its_reasoning_trimmed_and_its_arguments_written_again",
        "roles": "test_the_forest_says_what_was_so",
        "subagents": "test_data_flow_shows_the_subagent_on_both_its_ends",
        "compaction": "test_the_forest_says_what_was_so",
        "trained": "test_main_is_trained_and_nothing_else",
        "interrupt": "test_an_interrupt_drops_the_engines_request",
    }),
    Row("pi", "chat", "tests/real/test_pi.py", {
        "tools": "test_the_session_had_all_that_it_was_to_have",
        "streamed": "test_the_session_had_all_that_it_was_to_have",
        "ids": "test_ids_are_whole",
        "said": "test_pi_kept_what_the_engine_said",
        "drift": "test_drift_has_the_cause_that_the_messages_show",
        "roles": "test_the_forest_says_what_was_so",
        "compaction": "test_the_forest_says_what_was_so",
        "trained": "test_main_is_trained_and_nothing_else",
        "interrupt": "test_an_interrupt_drops_the_engines_request",
    }),
    Row("mini-swe-agent", "chat", "tests/real/test_mini_swe_agent.py", {
        "tools": "test_the_run_had_all_that_it_was_to_have",
        "ids": "test_ids_are_whole",
        "said": "test_it_kept_what_the_engine_said",
        "echo": "test_a_turn_comes_back_as_the_engine_told_it",
        "drift": "test_its_own_words_in_between_take_the_reasoning_away",
        "roles": "test_the_forest_says_what_was_so",
        "trained": "test_main_is_trained_and_what_was_dropped_is_not",
        "interrupt": "test_an_interrupt_drops_the_engines_request",
    }),
    Row("terminus-2, in Harbor", "chat", "tests/real/test_harbor.py", {
        "ids": "test_ids_are_whole",
        "said": "test_harbors_details_are_ours_id_by_id",
        "drift": "test_the_template_takes_the_reasoning_and_nothing_else_drifts",
        "roles": "test_the_forest_says_what_was_so",
        "compaction": "test_the_forest_says_what_was_so",
        "trained": "test_main_is_trained_with_its_summary_and_its_answers",
        "interrupt": "test_an_interrupt_drops_the_engines_request",
    }),
    Row("opencode, in Harbor", "chat", "tests/real/test_harbor.py", {
        "ids": "test_an_agent_that_harbor_runs_is_captured",
        "roles": "test_an_agent_that_harbor_runs_is_captured",
        "title": "test_an_agent_that_harbor_runs_is_captured",
        "trained": "test_an_agent_that_harbor_runs_is_captured",
    }),
)  # fmt: skip

DIALECT_FEATURES = {
    "whole and streamed": "a stream, put together by the client, is the whole reply",
    "thinking": "thinking or reasoning, in the dialect's own form",
    "tool loop": "a tool call, its result, an answer that goes on from it",
    "forced tools": "each form of tool choice",
    "schema": "structured output",
    "choices": "several replies to one prompt",
    "limits": "a limit of tokens; stop sequences where the dialect has them",
    "logprobs": "logprobs for who asks",
    "counting": "token counts are the engine's own",
    "models": "the list of models in the dialect's form",
    "errors": "errors are the client's own exceptions, with the engine's status",
    "broken stream": "a stream that breaks never looks finished",
    "last reply": "the well-formed last reply at a rollout's limit",
    "vLLM": "a real vLLM: ids and logprobs equal those of a direct call",
    "vLLM tool loop": "the same of a tool call and of the answer that goes on from its result",
    "vLLM forced tool": "the same of a tool that must be called, named and not",
}

_VLLM = "tests/real/test_dialects_vllm.py"
_REAL = {
    "vLLM": f"{_VLLM}::test_a_plain_reply",
    "vLLM tool loop": f"{_VLLM}::test_a_tool_loop",
    "vLLM forced tool": f"{_VLLM}::test_a_tool_that_must_be_called",
}

DIALECTS = (
    Row("chat", "openai", "tests/capture/dialects/test_chat_sdk.py", {
        "whole and streamed": "test_text_and_thinking",
        "thinking": "test_text_and_thinking",
        "tool loop": "test_a_tool_loop_goes_on_from_what_was_said",
        "forced tools": "test_forced_and_forbidden_tools",
        "schema": "test_a_schema",
        "choices": "test_several_choices",
        "limits": "test_limits_and_stop_strings",
        "logprobs": "test_logprobs_for_who_asks",
        "models": "test_models",
        "errors": "test_errors_are_the_client_s_own",
        "broken stream": "test_a_stream_that_breaks_never_looks_finished",
        "last reply": "test_the_last_reply_at_a_limit",
        **_REAL,
    }),
    Row("completions", "openai", "tests/capture/dialects/test_completions_sdk.py", {
        "whole and streamed": "test_whole_and_streamed",
        "logprobs": "test_logprobs_for_who_asks",
        "errors": "test_errors_are_the_client_s_own",
        "last reply": "test_the_last_reply_at_a_limit",
        "vLLM": f"{_VLLM}::test_a_text_that_goes_on",
    }),
    Row("responses", "openai", "tests/capture/dialects/test_responses_sdk.py", {
        "whole and streamed": "test_text_and_reasoning",
        "thinking": "test_text_and_reasoning",
        "tool loop": "test_a_tool_loop_goes_on_from_what_was_said",
        "forced tools": "test_a_forced_tool_and_a_schema",
        "schema": "test_a_forced_tool_and_a_schema",
        "limits": "test_a_limit_of_tokens",
        "logprobs": "test_logprobs_of_the_text",
        "errors": "test_errors_are_the_clients_own",
        "broken stream": "test_a_stream_that_breaks_is_no_response",
        "last reply": "test_the_last_reply_at_a_limit",
        **_REAL,
    }),
    Row("messages", "anthropic", "tests/capture/dialects/test_messages_sdk.py", {
        "whole and streamed": "test_text_and_thinking",
        "thinking": "test_text_and_thinking",
        "tool loop": "test_a_tool_loop_goes_on_from_what_was_said",
        "forced tools": "test_a_forced_tool_and_a_schema",
        "schema": "test_a_forced_tool_and_a_schema",
        "limits": "test_limits_and_stop_sequences",
        "counting": "test_counts_are_the_engine_s",
        "models": "test_models",
        "errors": "test_errors_are_the_client_s_own",
        "broken stream": "test_a_stream_that_breaks_is_no_message",
        "last reply": "test_the_last_reply_at_a_limit",
        **_REAL,
    }),
    Row("gemini", "google-genai", "tests/capture/dialects/test_gemini_sdk.py", {
        "whole and streamed": "test_text_and_thinking",
        "thinking": "test_text_and_thinking",
        "tool loop": "test_a_tool_loop_goes_on_from_what_was_said",
        "forced tools": "test_forced_functions_and_schemas",
        "schema": "test_forced_functions_and_schemas",
        "choices": "test_several_candidates_and_logprobs",
        "limits": "test_limits_and_stop_sequences",
        "logprobs": "test_several_candidates_and_logprobs",
        "counting": "test_counts_are_the_engine_s",
        "models": "test_models",
        "errors": "test_errors_are_the_client_s_own",
        "broken stream": "test_a_stream_that_breaks_is_no_reply",
        "last reply": "test_the_last_reply_at_a_limit",
        **_REAL,
    }),
)  # fmt: skip


def page() -> str:
    """Return the page. Raises `LookupError` for a claim that no test shows."""
    return "\n".join((HEAD, *_table("agent", "dialect", AGENTS, AGENT_FEATURES), MIDDLE,
                      *_table("dialect", "client", DIALECTS, DIALECT_FEATURES), ""))  # fmt: skip


def _table(name: str, beside: str, rows: Sequence[Row], features: Mapping[str, str]) -> list[str]:
    lines = [f"| {name} | {beside} | {' | '.join(features)} |", f"|---|---|{':-:|' * len(features)}"]
    for row in rows:
        cells = [TICK if _test(row, feature) else "" for feature in features]
        lines.append(f"| {row.name} | {row.beside} | {' | '.join(cells)} |")
    for feature, means in features.items():
        lines += ["", f"**{feature}**: {means}.", ""]
        lines += [f"- {row.name}: `{'::'.join(_test(row, feature))}`" for row in rows if _test(row, feature)]
    return lines


def _test(row: Row, feature: str) -> tuple[str, ...]:
    """Return file and name of the test that shows a feature; nothing where none is claimed."""
    claim = row.shown.get(feature)
    if claim is None:
        return ()
    file, _, name = claim.rpartition("::")
    file = file or row.file
    if name not in tests_of(ROOT / file):
        raise LookupError(f"{row.name}, {feature}: {file} has no test {name} that runs")
    return file, name


@cache
def tests_of(file: Path) -> frozenset[str]:
    """Return the names of a file's tests, but for those that are marked as skipped or failing."""
    found = (
        node
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )
    return frozenset(node.name for node in found if not NO_TICK.intersection(_marks(node)))


def _marks(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    names = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
    return [each.attr for each in names if isinstance(each, ast.Attribute)]


if __name__ == "__main__":
    PAGE.write_text(page())
