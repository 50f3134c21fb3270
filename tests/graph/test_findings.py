"""The table, and the document that is printed from it."""

import string
from pathlib import Path

from graph.findings import TABLE
from graph.tables import document

ROOT = Path(__file__).parents[2]

# What a rollout must at least be able to say of itself.
CODES = {
    "no_calls", "no_token_ids", "no_logprobs", "count_mismatch", "invalid_logprobs", "positive_logprob", "drift",
    "token_out_of_vocabulary", "drift_over_threshold", "volatile_prefix", "per_turn_roots", "multiple_roots",
    "auxiliary_calls", "subagents", "compaction", "ambiguous_main", "retries", "forks", "discarded_calls",
    "truncated_reply", "aborted_calls", "engine_errors", "limit_stop", "sampling_unpinned", "sampling_truncates",
    "constrained_sampling", "sampling_changed", "logprob_mode_unknown", "logprobs_not_of_sampler", "parent_lost",
    "role_hint_disagrees", "secret_in_content", "request_refused", "expired", "capture_incomplete", "tunnel_lost",
    "unknown_secret_calls", "graded_without_calls", "nothing_trainable", "request_repaired", "steering_removed",
    "realign_masked", "weights_changed", "weights_mixed", "engine_changed", "role_overruled", "time_limit",
}  # fmt: skip


def test_every_code_has_a_row():
    assert TABLE.keys() >= CODES


def test_a_row_s_text_is_filled_from_its_data_and_its_count():
    for row in TABLE.values():
        names = {name for _, name, _, _ in string.Formatter().parse(row.text) if name}
        assert names <= {"count", "why", *(key for key, _ in row.data)}, row.code


def test_each_row_says_what_it_means_and_what_to_do():
    for row in TABLE.values():
        assert row.means, row.code
        assert row.do, row.code
        assert row.text.endswith("."), row.code


def test_the_document_is_printed_from_the_table():
    assert (ROOT / "docs" / "findings.md").read_text(encoding="utf-8") == document()
