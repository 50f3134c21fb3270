"""Read the client's Harbor jobs with Harbor's own model: `python tests/real/client_harbor.py CASE REPORT`."""

# The library is in another environment than the types are checked in.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import json
import sys
from pathlib import Path

from harbor.models.job.config import JobConfig


def main() -> None:
    """Report each job as Harbor reads it."""
    jobs = [JobConfig.model_validate(job) for job in json.loads(Path(sys.argv[1]).read_text())]
    Path(sys.argv[2]).write_text(json.dumps([job.model_dump(mode="json") for job in jobs]))


if __name__ == "__main__":
    main()
