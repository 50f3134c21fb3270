/* Every format in which training sequences go out, in the order in which they are offered.
   Printed by `python bin/page_tables.py formats` from capture/formats.py; change that. */

export const FORMATS = {
  "native": {"help": "Treering's own rows: ids, mask, logprobs, where each part is from.", "extension": "jsonl", "drifts": ["split", "realign"]},
  "trl": {"help": "TRL's asynchronous GRPO: rows of full length.", "extension": "jsonl", "drifts": ["split", "realign"]},
  "openenv": {"help": "OpenEnv's TrainingTrace, one turn a call, for TRL's harness.", "extension": "jsonl", "drifts": ["split"]},
  "verifiers": {"help": "verifiers' Trace: the message graph, with semantic edges.", "extension": "jsonl", "drifts": ["split"]},
  "prime-rl": {"help": "prime-rl's TrainingSample: rows of full length, a temperature a token.", "extension": "jsonl", "drifts": ["split", "realign"]},
  "atif": {"help": "An ATIF v1.8 trajectory: steps, with subagents embedded.", "extension": "jsonl", "drifts": ["split"]},
  "harbor": {"help": "Harbor's AgentContext: rollout_details, main first.", "extension": "jsonl", "drifts": ["split"]},
  "tinker": {"help": "Tinker's Datum inputs: shifted by one.", "extension": "jsonl", "drifts": ["split", "realign"]},
  "verl": {"help": "verl's AgentLoopOutput: prompt and response.", "extension": "jsonl", "drifts": ["split", "realign"]},
  "skyrl": {"help": "SkyRL's GeneratorOutput, step-wise: prompt and response.", "needsReward": true, "extension": "jsonl", "drifts": ["split", "realign"]},
  "slime": {"help": "slime's and miles' Sample: the response's tail.", "extension": "jsonl", "drifts": ["split", "realign"]},
  "areal": {"help": "AReaL's tensors: full length, a version a token.", "needsReward": true, "extension": "jsonl", "drifts": ["split", "realign"]},
  "tree": {"help": "Every distinct token once, for tree attention.", "extension": "jsonl", "drifts": ["tree"]},
  "parquet": {"help": "A Parquet file of rows, for data frames and data sets.", "extra": "parquet", "extension": "parquet", "drifts": ["split", "realign"]},
};
