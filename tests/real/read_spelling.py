"""Run in an environment with transformers: what tokenisers make of marks, of tokens between them, and of each alone.

CASE: {"folders": [...], "mark": "...", "seed": 1, "batches": 8, "size": 256}
REPORT: by folder, {"mark": ids, "twice": text, "batches": [{"ids", "whole", "alone"}]}
"""

import json
import random
import sys
from pathlib import Path

import transformers  # type: ignore[import-not-found]  # of the environment that it runs in


def main(case: Path, report: Path) -> None:
    asked = json.loads(case.read_text())
    draw = random.Random(asked["seed"])
    said = {}
    for folder in asked["folders"]:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        mark = tokenizer(asked["mark"], add_special_tokens=False)["input_ids"]
        batches = []
        for _ in range(asked["batches"]):
            ids = [draw.randrange(len(tokenizer)) for _ in range(asked["size"])]
            whole = [*mark, *(token for one in ids for token in (one, *mark))]
            batches.append(
                {"ids": ids, "whole": tokenizer.decode(whole), "alone": [tokenizer.decode([one]) for one in ids]}
            )
        said[folder] = {"mark": mark, "twice": tokenizer.decode([*mark, *mark]), "batches": batches}
    report.write_text(json.dumps(said))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
