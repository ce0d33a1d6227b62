"""Unbiased max@k and pass@k of a validation, from the values verl collects."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bestofk.objectives import max_at_k, pass_at_k


def validation_metrics(
    sources: Sequence[str],
    uids: Sequence[Any],
    infos: Mapping[str, Sequence[Any]],
    *,
    k: int = 1,
    passing: float = 1.0,
) -> dict[str, float]:
    """max@k and pass@k per data source, unbiased for each prompt and averaged over prompts.

    k is 1, 2, 4, … up to the samples of a prompt, and the objective's own. A value that is None or
    NaN was not scored and does not count; a prompt with fewer than k values is left out of that k.
    """
    result: dict[str, list[float]] = defaultdict(list)
    for name in [name for name in ("reward", "acc") if name in infos]:
        groups: dict[tuple[str, str], list[float]] = defaultdict(list)
        for source, uid, value in zip(sources, uids, infos[name], strict=True):
            if value is not None and not np.isnan(float(value)):
                groups[str(source), str(uid)].append(float(value))
        for (source, _), values in groups.items():
            n = len(values)
            for size in sorted({2**i for i in range(n.bit_length())} | ({k} if k <= n else set())):
                where = f"val-core/{source}/{name}"
                result[f"{where}/max@{size}"].append(float(max_at_k(values, size)))
                passed = pass_at_k(values, size, threshold=passing)
                result[f"{where}/pass@{size}"].append(float(passed))
    return {name: float(np.mean(values)) for name, values in result.items()}
