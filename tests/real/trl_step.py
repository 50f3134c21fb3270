"""One optimiser step of TRL's own trainer on exported rollouts, and each trained token held to its captured logprob.

    python tests/real/trl_step.py CASE REPORT

CASE is a JSON file: `model`, a folder; `rollouts`, each with its exports `trl` and `openenv`, its `reward`, and the
`calls` that its agent made (`request`, `reply`, ids and logprobs). REPORT gets what was measured, as JSON. It runs in
the environment .real/trl: trl 1.16.0, openenv 0.10.0, torch for CPUs. `trl_worker` is its other half.

What is TRL's: everything that a row meets on its way from a session to the optimiser.
- The rollout loop that owns no model, `_HarnessRolloutLoop`: it makes sessions, takes their training traces
  (`TrainingTrace`, OpenEnv's), turns them into rows (`_turns_from_training_trace`, `_chain_to_sequences`), scores the
  group and stamps advantages (`_score_group`), and fills the queue.
- `AsyncGRPOTrainer`, whole: the queue's data set, the batcher, the packing of rows into one trie (`TreeRow`), the
  collator, the fused head that computes logprobs, the clipped loss, AdamW.

What is not, since it needs a GPU or a cluster:
- The attention kernel. TRL's packed attention is FlashAttention 3's `flash_attn_varlen_func`; `attend` below has its
  arguments and does the same sums in plain torch. `rowwise` holds it to transformers' own attention, row by row.
- The process that the loop lives in (here a thread), the transfer of weights to an engine (here nothing), and the
  question for the GPU's speed, which only a log line is made of.
"""

# The libraries are in another environment than the types are checked in.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# Before the libraries look: nothing is fetched, nothing is reported, and no process group is joined.
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "CI": "1", "TOKENIZERS_PARALLELISM": "false"}

import numpy as np
import torch
import transformers
import trl
from accelerate.state import PartialState
from datasets import Dataset
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer, packing
from trl.experimental.async_grpo.async_grpo_trainer import DataCollatorForRollout
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample, _chain_to_sequences
from trl.experimental.async_grpo.openenv_harness import _turns_from_training_trace
from trl.experimental.async_grpo.packing import TREE_ATTENTION, TreeRow, register_tree_attention
from trl.trainer.utils import add_fused_lm_head, create_model_from_path
from trl_worker import NoTransfer, Session, Worker

LEARNING_RATE = 1e-3

# -- in a kernel's place -----------------------------------------------------------------------------------------------


def attend(
    query: Any, key: Any, value: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int, *, softmax_scale: float,
    causal: bool, window_size: tuple[int, int],
) -> Any:  # fmt: skip
    """Attend as `flash_attn_varlen_func` does: each stretch of queries to its own keys, causal from their ends.

    Shapes [tokens, heads, head_dim]; the heads of keys and values are shared out among those of queries.
    """
    assert causal, "the trainer's attention is causal"
    assert window_size == (-1, -1), "the tiny model has no sliding window"
    shared = query.shape[1] // key.shape[1]
    out = torch.empty_like(query)
    for i in range(len(cu_q) - 1):
        q = query[cu_q[i] : cu_q[i + 1]]
        k = key[cu_k[i] : cu_k[i + 1]].repeat_interleave(shared, dim=1)
        v = value[cu_k[i] : cu_k[i + 1]].repeat_interleave(shared, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q, k) * softmax_scale
        # The last query sees all keys, the one before it all but the last, and so on.
        seen = torch.ones(len(q), len(k), dtype=torch.bool).tril(diagonal=len(k) - len(q))
        weights = scores.float().masked_fill(~seen, -math.inf).softmax(-1).to(v.dtype)
        out[cu_q[i] : cu_q[i + 1]] = torch.einsum("hqk,khd->qhd", weights, v)
    return out


# -- the trainer -----------------------------------------------------------------------------------------------------


class Watched(AsyncGRPOTrainer):
    """The trainer, with an eye on what its loss compares."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        seen: list[Any] = []
        hook = model.register_forward_hook(lambda _module, _args, output: seen.append(output.log_probs.detach()))
        try:
            loss = super().compute_loss(model, inputs, *args, **kwargs)
        finally:
            hook.remove()
        selected = inputs["token_index"] >= 0
        now = seen[0].flatten()[inputs["token_index"][selected]]
        self.compared = (now - inputs["old_log_probs"][selected]).abs()
        self.loss = float(loss.detach())
        return loss


# -- rows and what is to be seen of them -------------------------------------------------------------------------------


def as_sample(ids: list[int], mask: list[int], logprobs: list[float]) -> dict[str, Any]:
    """Return a row as TRL's data set yields it."""
    return {
        "input_ids": np.asarray(ids, dtype=np.int64),
        "completion_mask": np.asarray(mask, dtype=np.int64),
        "old_log_probs": np.asarray(logprobs, dtype=np.float32),
        "advantage": 1.0,
        "group_id": 0,
        "metrics": {},
    }


def packed(model: Any, samples: list[dict[str, Any]]) -> list[float]:
    """Return |recomputed - captured| of each trained token: TRL's packing, collator and head on all rows at once."""
    row = TreeRow()
    for sample in samples:
        row.add(sample)
    batch = DataCollatorForRollout(pad_token_id=0)([[row]])
    tree = {key: batch[key][batch[key] >= 0] for key in ("tree_kv_index", "tree_cu_seqlens_q", "tree_cu_seqlens_k")}
    longest = batch["tree_max_seqlens"][0].tolist()
    with torch.no_grad():
        output = model(
            input_ids=batch["input_ids"], position_ids=batch["position_ids"], shift_labels=batch["shift_labels"],
            fused_lm_head=True, **tree, tree_max_seqlen_q=longest[0], tree_max_seqlen_k=longest[1],
        )  # fmt: skip
    now = output.log_probs.flatten()[batch["token_index"][0]].float()
    return (now - batch["old_log_probs"][0]).abs().tolist()


def rowwise(folder: str, samples: list[dict[str, Any]]) -> list[float]:
    """Return the same by transformers alone: each row by itself, its own attention, a log-softmax of its logits."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    found: list[float] = []
    for sample in samples:
        ids = torch.from_numpy(sample["input_ids"])
        with torch.no_grad():
            scores = model(input_ids=ids[None]).logits[0].log_softmax(-1)
        now = scores[:-1].gather(1, ids[1:, None])[:, 0]
        trained = torch.from_numpy(sample["completion_mask"])[1:] == 1
        found += (now - torch.from_numpy(sample["old_log_probs"])[1:])[trained].abs().tolist()
    return found


def trained_stretches(sample: dict[str, Any]) -> list[tuple[int, int]]:
    """Return start and end of each run of trained tokens."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], sample["completion_mask"], [0]])))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def shift_logprobs(sample: dict[str, Any]) -> dict[str, Any]:
    """Give each trained token the logprob of the one before it among the trained; the first gets the last's."""
    logprobs = sample["old_log_probs"].copy()
    trained = sample["completion_mask"] == 1
    logprobs[trained] = np.roll(logprobs[trained], 1)
    return sample | {"old_log_probs": logprobs}


def shift_mask(sample: dict[str, Any]) -> dict[str, Any]:
    """Train one token too early: the mask of each token goes to the one before it. Logprobs stay where they are."""
    return sample | {"completion_mask": np.append(sample["completion_mask"][1:], 0)}


def rendered_again(tokenizer: Any, calls: dict[int, Any], row: dict[str, Any]) -> dict[str, Any]:
    """Return a row made of messages: all that the last request and its reply say, through the chat template.

    Each trained reply is found between the rendering before it and the one behind it, and takes its captured logprobs
    in their order, as far as both go: the trainer has no better idea which belongs to which.
    """
    last = calls[row["about"]["calls"][-1]]
    # The template wants a content of every message.
    messages = [{"content": "", **message} for message in (*last["request"]["messages"], last["reply"])]
    tools = last["request"].get("tools")

    def render(upto: int, *, prompt: bool) -> list[int]:
        found: list[int] = tokenizer.apply_chat_template(
            messages[:upto], tools=tools, add_generation_prompt=prompt, return_dict=False
        )
        return found

    ids = render(len(messages), prompt=False)
    mask, logprobs = [0] * len(ids), [0.0] * len(ids)
    for n in row["about"]["trained"]:
        call = calls[n]
        place = len(call["request"]["messages"])
        start, end = len(render(place, prompt=True)), len(render(place + 1, prompt=False))
        for offset, logprob in enumerate(call["logprobs"]):
            if start + offset < end:
                mask[start + offset], logprobs[start + offset] = 1, logprob
    return as_sample(ids, mask, logprobs)


def told(differences: list[float]) -> dict[str, Any]:
    """Return what a check reads."""
    return {"tokens": len(differences), "mean": statistics.fmean(differences), "max": max(differences)}


# -- the run -----------------------------------------------------------------------------------------------------------


def step(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Make one optimiser step with TRL's trainer on what TRL's loop makes of the traces."""
    traces = [Session(rollout).fetch_training_trace() for rollout in case["rollouts"]]
    n_rows = sum(len(_chain_to_sequences(_turns_from_training_trace(trace), "", 0)[0]) for trace in traces)
    tokenizer = transformers.AutoTokenizer.from_pretrained(case["model"])
    # How to parse replies that TRL samples itself, which is nothing here: it has none for this tokeniser's template.
    tokenizer.response_template = {}
    worker = Worker(case, tokenizer)
    trainer = Watched(
        model=case["model"],
        args=AsyncGRPOConfig(
            output_dir=str(folder), max_steps=1, per_device_train_batch_size=n_rows, gradient_accumulation_steps=1,
            learning_rate=LEARNING_RATE, temperature=1.0, num_generations=len(case["rollouts"]), token_budget=0,
            use_cpu=True, bf16=False, fp16=False, report_to=[], save_strategy="no", gradient_checkpointing=False,
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": "Go."}]]}),
        processing_class=tokenizer,
        rollout_worker=worker,
        weight_transfer=NoTransfer(),
    )  # fmt: skip
    before = {name: value.detach().clone() for name, value in trainer.model.named_parameters()}
    taken: list[RolloutSample] = []
    get = worker.rollout_buffer.get

    def watched_get(*args: Any, **kwargs: Any) -> RolloutSample:
        sample = get(*args, **kwargs)
        taken.append(sample)
        return sample

    worker.rollout_buffer.get = watched_get  # type: ignore[method-assign]  # to see what the trainer was given
    result = trainer.train()
    after = dict(trainer.model.named_parameters())
    moved = {name: float((after[name].detach() - value).abs().max()) for name, value in before.items()}
    return {
        "loss": trainer.loss,
        "train_loss": result.training_loss,
        "global_step": result.global_step,
        "gradient_norm": next((log["grad_norm"] for log in trainer.state.log_history if "grad_norm" in log), None),
        "parameters": len(moved),
        "parameters_moved": sum(change > 0 for change in moved.values()),
        "largest_change": max(moved.values()),
        "compared": told(trainer.compared.tolist()),
        "rows": [
            {
                "input_ids": sample.input_ids.tolist(),
                "completion_mask": sample.completion_mask.tolist(),
                "old_log_probs": sample.old_log_probs.tolist(),
                "advantage": sample.advantage,
                "reward": sample.metrics["reward"],
            }
            for sample in taken[:n_rows]
        ],
    }


def report(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return all that is measured."""
    packing._flash_attn = lambda: SimpleNamespace(flash_attn_varlen_func=attend)
    async_grpo_trainer.get_peak_flops_per_device = lambda accelerator, dtype: None
    PartialState()
    torch.manual_seed(0)
    rows = [(rollout, row) for rollout in case["rollouts"] for row in rollout["trl"]["rows"]]
    samples = [
        as_sample(*(row["sample"][name] for name in ("input_ids", "completion_mask", "old_log_probs")))
        for _, row in rows
    ]
    tokenizer = transformers.AutoTokenizer.from_pretrained(case["model"])
    again = [rendered_again(tokenizer, {call["n"]: call for call in rollout["calls"]}, row) for rollout, row in rows]
    register_tree_attention()
    models = {}
    for dtype in ("float32", "bfloat16"):
        models[dtype] = create_model_from_path(
            case["model"], device_map=None, attn_implementation=TREE_ATTENTION, dtype=dtype
        )
        add_fused_lm_head(models[dtype], temperature=1.0)
    exact = models["float32"]
    return {
        "versions": {"trl": trl.__version__, "torch": torch.__version__, "transformers": transformers.__version__},
        "rollouts": len(case["rollouts"]),
        "rows": len(samples),
        "replies": sum(len(trained_stretches(sample)) for sample in samples),
        "entropy": float(np.mean([-v for s in samples for v in s["old_log_probs"][s["completion_mask"] == 1]])),
        "checks": {
            "captured": told(packed(exact, samples)),
            "captured, transformers row by row": told(rowwise(case["model"], samples)),
            "captured, recomputed in bfloat16": told(packed(models["bfloat16"], samples)),
            "logprobs shifted by one": told(packed(exact, [shift_logprobs(sample) for sample in samples])),
            "mask shifted by one": told(packed(exact, [shift_mask(sample) for sample in samples])),
            "history rendered again": told(packed(exact, again)),
        },
        "rendered_again": {
            "rows_with_other_ids": sum(a["input_ids"].tolist()[: len(b["input_ids"])] != b["input_ids"].tolist()
                                       for a, b in zip(again, samples, strict=True)),
        },
        "step": step(case, folder),
    }  # fmt: skip


def main() -> None:
    """Read the command line, measure, write the report."""
    parser = argparse.ArgumentParser(description="Make one optimiser step with TRL on exported rollouts.")
    parser.add_argument("case", type=Path)
    parser.add_argument("report", type=Path)
    options = parser.parse_args()
    case = json.loads(options.case.read_text())
    began = time.monotonic()
    found = report(case, options.report.parent)
    found["seconds"] = round(time.monotonic() - began, 1)
    options.report.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
