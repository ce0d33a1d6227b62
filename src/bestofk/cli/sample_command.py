"""`bestofk sample`: draw and score samples from a model or an endpoint, into a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bestofk.cli._options import parsed
from bestofk.cli._sampling_job import SampleOptions, by_temperature, sample


def main(argv: list[str]) -> int:
    chosen = parsed(SampleOptions, argv, "bestofk sample")
    files = sampled(chosen)
    if files is None:
        return 1
    names = list(map(str, files))
    if chosen.json:
        print(json.dumps({"files": names, "task": chosen.task, "n": chosen.n}))
    else:
        print(f"bestofk eval {' '.join(names)}    # next: what best-of-k is worth")
    return 0


def sampled(chosen: SampleOptions) -> list[Path] | None:
    """Sample and score; the files, or None when sampling had to stop early."""
    from bestofk.rewards import TooManyUnscored
    from bestofk.sampling.endpoint import CapReached, EndpointError

    chosen.check()
    files = []
    for job in by_temperature(chosen):
        try:
            files.append(sample(job))
        except (CapReached, EndpointError, TooManyUnscored) as error:
            print(f"bestofk sample: {error}", file=sys.stderr)
            return None
    return files
