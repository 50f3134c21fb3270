"""Samples for slime, and for miles: `format=slime`.

Written for slime 0.3.1 at commit 624b824a8 (`slime/utils/types.py`) and miles at 31f1ca961 (`miles/utils/types.py`):
each row is what `Sample.from_dict(row)` of either takes.

- `tokens` are the whole row; mask and logprobs cover its last `response_length` tokens, which begin with the first
  trained one. Tokens that are not trained have mask 0 and logprob 0.0.
- Siblings share `rollout_id`, or the loss counts rows as rollouts. It is a number there: a stable one made of the
  rollout's id, as `group_index` is of the group's (of the rollout's where it has none). `index` equals `rollout_id`, so
  that rollouts of one row are seen as slime sees its own. Renumber them if your data source counts.
- Give siblings as one list where slime expects one sample (prompt × rollout × samples): it checks the shared id there
  alone.
- The reward stands on every sibling, and GRPO's mean and deviation count samples, in miles always and in slime where
  groups are of unequal size. `metadata.treering.n_rows` is there to divide by: use a reward post-processing of your own
  that groups by `group_index` and counts each `rollout_id` once.
- `status`: `truncated` for a row that was cut short by length or by a limit, which trains; `aborted` for one whose last
  reply broke off, which is there only if `aborted=train` was asked for; both libraries draw such groups again.
- `weight_versions`: one a trained reply (several where they changed on the way), and none at all where one is unknown:
  the oldest of some is not the oldest.
- `response` is the text of the last reply, and `prompt` the messages that the row began with.
- slime's `session_id` and miles' `routing_key` are both the rollout's id. Each library keeps the other's as an
  attribute that it does not read.
"""

from __future__ import annotations

from typing import Any

from graph.formats import checks
from graph.formats.chat import parted
from graph.formats.projection import Row, full, rows, sampled, stable
from graph.formats.refused import Refused
from graph.graph import Graph
from graph.sequences import Sequences

DRIFTS = ("split", "realign")

STATUS = {"stop": "completed", "length": "truncated", "limit": "truncated", "abort": "aborted"}


def to_json(graph: Graph, sequences: Sequences) -> dict[str, Any]:
    """Return a rollout's samples for slime and miles. Raises `Refused`."""
    going = rows(graph, sequences)
    samples = [_row(graph, row) for row in going]
    check(samples)
    return going.head("slime") | {"rows": samples}


def check(samples: list[dict[str, Any]]) -> None:
    """Refuse what slime and miles refuse of one rollout's samples, before their trainers would.

    Re-stated from `Sample._validate_response_metadata_lengths` and `validate_rollout_id_annotated`
    (slime/observability/rollout_data_utils.py), and `Sample.validate` of miles.
    """
    owners = {sample["rollout_id"] for sample in samples}
    if len(owners) != 1 or None in owners:
        raise Refused("Samples of one rollout have no rollout_id, or not the same.", hint=checks.FAULT)
    for place, sample in enumerate(samples):
        where = f"Sample {place}"
        n = sample["response_length"]
        if not 0 < n < len(sample["tokens"]):
            raise Refused(f"{where}: a response of {n} of {len(sample['tokens'])} tokens.", hint=checks.FAULT)
        checks.token_ids(where, sample["tokens"])
        for name in ("loss_mask", "rollout_log_probs"):
            if len(sample[name]) != n:
                raise Refused(f"{where}: {len(sample[name])} {name} for a response of {n}.", hint=checks.FAULT)
        checks.scored(where, sample["loss_mask"], sample["rollout_log_probs"])


def _row(graph: Graph, row: Row) -> dict[str, Any]:
    whole, of = full(row), row.of
    prompt, added = parted(graph, row)
    owner = stable(of.rollout)
    return {
        "group_index": owner if of.group is None else stable(of.group),
        "index": owner,
        "rollout_id": owner,
        "prompt": prompt,
        "tokens": whole.ids,
        "response": added[-1]["content"] if added and added[-1]["role"] == "assistant" else "",
        "response_length": len(whole.ids) - row.first,
        "label": None,
        "reward": of.reward,
        "loss_mask": whole.mask[row.first :],
        "weight_versions": _versions(row),
        "rollout_log_probs": whole.logprobs[row.first :],
        "remove_sample": False,
        "status": STATUS[row.ended],
        "metadata": {"treering": row.about()},
        "train_metadata": None,
        "session_id": of.rollout,
        "routing_key": of.rollout,
    }


def _versions(row: Row) -> list[str]:
    versions = [stretch.weights for stretch in sampled(row)]
    known = [version for version in versions if version is not None]
    return known if len(known) == len(versions) else []
