"""Hand exports to a library that does not install lightly: `python tests/real/read_optional.py NAME CASE REPORT`.

NAME is `slime`, `miles`, `skyrl`, `areal`, `prime-rl` or `verl`, whose code is first on PYTHONPATH. CASE is a list of
that format's exports; REPORT gets for each its rows (`ids`, `mask`, `logprobs`), read back from the library's own
objects after its own checks.
"""

# The libraries are in another environment than the types are checked in.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Optional

Rows = list[dict[str, Any]]


class Trajectory(NamedTuple):
    """SkyRL's `TrajectoryID`, with its method."""

    instance_id: str
    repetition_id: int

    def to_string(self) -> str:
        return f"{self.instance_id}_{self.repetition_id}"


def alone(name: str, path: str) -> ModuleType:
    """Load one file of a checkout without its package, whose `__init__` wants ray, CUDA and more."""
    found = next(each for folder in sys.path if (each := Path(folder) / path).is_file())
    spec = importlib.util.spec_from_file_location(name, found)
    assert spec is not None, "a file that is there"
    assert spec.loader is not None, "a Python file"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def lifted(path: str, *names: str, lazy: bool = True, **known: Any) -> Any:
    """Return the first of some functions or classes of a checkout's file, whose imports want a cluster.

    `known` are the names that they use, and, unless `lazy`, that their annotations do.
    """
    found = next(each for folder in sys.path if (each := Path(folder) / path).is_file())
    parts = ast.parse(found.read_text(), str(found))
    wanted = [part for part in parts.body if isinstance(part, ast.FunctionDef | ast.ClassDef) and part.name in names]
    future = [ast.ImportFrom("__future__", [ast.alias("annotations")], 0)] if lazy else []
    module = ast.fix_missing_locations(ast.Module([*future, *wanted], []))
    namespace: dict[str, Any] = {"Any": Any, "logger": logging.getLogger(path), **known}
    # Without it, the annotations of this file would be theirs.
    exec(compile(module, str(found), "exec", dont_inherit=True), namespace)  # the checkout that the caller named
    return namespace[names[0]]


def tail(prompt: list[int], response: list[int], mask: list[int], logprobs: list[float]) -> dict[str, Any]:
    """Return a row of full length."""
    assert len(response) == len(mask) == len(logprobs)
    return {
        "ids": list(prompt) + list(response),
        "mask": [0] * len(prompt) + [int(value) for value in mask],
        "logprobs": [0.0] * len(prompt) + list(logprobs),
    }


def of_sample(sample: Any) -> dict[str, Any]:
    """Return slime's or miles' sample as a row."""
    tokens, n = sample.tokens, sample.response_length
    return tail(tokens[:-n], tokens[-n:], sample.loss_mask, sample.rollout_log_probs)


def slime(form: dict[str, Any]) -> Rows:
    types = alone("slime_types", "slime/utils/types.py")
    samples = [types.Sample.from_dict(row) for row in form["rows"]]
    for sample in samples:
        sample._validate_response_metadata_lengths()
    assert len({sample.rollout_id for sample in samples}) == 1
    return [of_sample(sample) for sample in samples]


def miles(form: dict[str, Any]) -> Rows:
    types = alone("miles_types", "miles/utils/types.py")
    samples = [types.Sample.from_dict(row) for row in form["rows"]]
    for sample in samples:
        sample.validate()
    return [of_sample(types.Sample.from_dict(sample.to_dict())) for sample in samples]


def skyrl(form: dict[str, Any]) -> Rows:
    np = importlib.import_module("numpy")
    validate = lifted(
        "skyrl/train/utils/trainer_utils.py", "validate_generator_output", "_validate_step_wise_fields", np=np
    )
    output = form["output"]
    # What SkyRL's own TrajectoryID is: hashable, and equal by its two fields.
    output["trajectory_ids"] = [Trajectory(**each) for each in output["trajectory_ids"]]
    validate(1, output, step_wise=True)
    names = ("prompt_token_ids", "response_ids", "loss_masks", "rollout_logprobs")
    return [tail(*parts) for parts in zip(*(output[name] for name in names), strict=True)]


def areal(form: dict[str, Any]) -> Rows:
    torch = importlib.import_module("torch")
    check = lifted(
        "areal/infra/workflow_executor.py",
        "check_trajectory_format",
        torch=torch,
        logging=logging,
        # Its other form, which ours is not.
        InteractionWithTokenLogpReward=type("InteractionWithTokenLogpReward", (), {}),
    )
    found = []
    for row in form["rows"]:
        tensors = {name: torch.tensor(values) for name, values in row["tensors"].items()}
        assert check(tensors)
        found.append(
            {
                "ids": tensors["input_ids"][0].tolist(),
                "mask": tensors["loss_mask"][0].tolist(),
                "logprobs": tensors["logprobs"][0].tolist(),
            }
        )
    return found


def prime_rl(form: dict[str, Any]) -> Rows:
    msgspec = importlib.import_module("msgspec")
    kind = alone("prime_rl_types", "src/prime_rl/transports/rollouts/types.py").TrainingSample
    samples = [row["sample"] for row in form["rows"]]
    sent = [kind(**sample, advantages=[0.0] * len(sample["mask"])) for sample in samples]
    decoder = msgspec.msgpack.Decoder(kind)
    got = [decoder.decode(msgspec.msgpack.encode(one)) for one in sent]
    return [{"ids": one.token_ids, "mask": one.mask, "logprobs": one.logprobs} for one in got]


def verl(form: dict[str, Any]) -> Rows:
    kind = lifted(
        "verl/experimental/agent_loop/agent_loop.py",
        "AgentLoopOutput",
        "AgentLoopMetrics",
        lazy=False,
        torch=importlib.import_module("torch"),
        BaseModel=importlib.import_module("pydantic").BaseModel,
        Optional=Optional,
        __name__=__name__,
    )
    found = []
    for row in form["rows"]:
        made = kind(**row).as_dict()
        prompt, response, mask, logprobs = (
            made[name].tolist() for name in ("prompts", "responses", "response_mask", "rollout_log_probs")
        )
        if row["reward_score"] is not None:
            assert made["rm_scores"].tolist() == [0.0] * (len(response) - 1) + [row["reward_score"]]
        found.append(tail(prompt, response, mask, logprobs))
    return found


READERS: dict[str, Callable[[dict[str, Any]], Rows]] = {
    "slime": slime,
    "miles": miles,
    "skyrl": skyrl,
    "areal": areal,
    "prime-rl": prime_rl,
    "verl": verl,
}


def main() -> None:
    """Read the case, write the report."""
    name, case, report = sys.argv[1:]
    told = [READERS[name](form) for form in json.loads(Path(case).read_text())]
    Path(report).write_text(json.dumps(told))


if __name__ == "__main__":
    main()
