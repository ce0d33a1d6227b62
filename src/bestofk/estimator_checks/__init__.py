"""Judge anybody's estimator of the gradient of max@k by exact enumeration.

`bestofk.conformance(fn, k=4)` puts a function rewards → advantages through small softmax policies
whose gradients are known, counts every outcome, and says what the function is: unbiased or not, in
which convention, in which direction, and what it does at the edges.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any, TextIO

import numpy as np

from bestofk.objectives import Objective, objective
from bestofk.procedures.arrays import positive_integer

from .behaviour import Finding
from .beyond_max import judge_procedure, procedure_of
from .calling import Clock, Kind, Request, name_of
from .fits import Case, Fit
from .judging import judge
from .verdict import Conformance

__all__ = ["Case", "Conformance", "Finding", "Fit", "conformance"]


def conformance(
    fn: Callable[..., Any] | Objective | str,
    k: int,
    n: int | None = None,
    off_policy: bool = False,
    *,
    quiet: bool = False,
    file: TextIO | None = None,
    name: str | None = None,
    kind: Kind | None = None,
    seed: int = 0,
    seconds: float = 120.0,
    procedure: str | None = None,
    **options: Any,
) -> Conformance:
    """Judge an estimator of ∇max@k, or of another procedure; print a verdict, return the data.

    The expected update E[(1/n) Σ_i A_i ∇log π(y_i)] is summed over all outcomes of n draws, under
    several tabular softmax policies with 0/1, real, tied and negative rewards, and compared with
    the gradient in closed form. No Monte Carlo: an unbiased estimator comes out at rounding error.

    Args:
        fn: rewards (n,) or (groups, n) → advantages of the same shape; `fn(rewards, log_ratio)`
            when off_policy. NumPy, torch or plain lists: found out by trying. An Objective or its
            name ("max@4") may be given too.
        k: the k of max@k that the function claims.
        n: samples per group; by default k + 2, at least 4. For a function whose k is the group
            size, n = k.
        off_policy: samples come from an older policy, and the function gets their log-ratios.
        quiet: print nothing.
        file: print there instead of standard output.
        name: what to call it in the verdict.
        kind: "numpy", "torch" or "list", where trying would find the wrong one.
        seed: of the policies.
        seconds: that all calls together may take. What is slow says so on standard error; large
            groups that would take longer are left out, with a note.
        procedure: what k samples are used for, where that is not the maximum: "select@k",
            "maj@k:ties-wrong", "retry@k", "subsets@k", ...; known for an objective. The function
            gets what it needs by name, fn(rewards, scores=, answers=, tokens=, log_ratio=), and is
            judged against the definition of the procedure.
        options: of the procedure: price (retry@k), value (subsets@k); and of a named objective.

    Raises:
        ValueError: k < 1, n < k, n < 2; too many outcomes to enumerate; calls that take too long.
        TypeError: fn cannot be called.

    >>> result = conformance("max@2:loo-1", k=2, quiet=True)
    >>> result.verdict, result.summary
    ('exact', 'unbiased for the gradient of max@2, in the mean convention')
    >>> result = conformance(lambda r: r - r.mean(axis=-1, keepdims=True), k=1, n=4, quiet=True)
    >>> result.verdict, result.zero_one.convention
    ('scaled', '(n-1)/n')
    """
    k = positive_integer(k, "k")
    n = max(k + 2, 4) if n is None else positive_integer(n, "n")
    if n < 2:
        raise ValueError(f"n (samples per group) must be at least 2, got {n}")
    if n < k:
        raise ValueError(
            f"n must be at least k, got n = {n} with k = {k}: best of {k} cannot be estimated from "
            f"{n} samples (what the function does there is part of the verdict)"
        )
    if kind not in (None, "numpy", "torch", "list"):
        raise ValueError(f"kind is 'numpy', 'torch', 'list' or None (try them all), got {kind!r}")
    if kind == "torch":
        import torch  # noqa: F401  (tensors are made from the loaded module)
    if isinstance(fn, str):
        fn = objective(fn, **options)
    chosen = procedure_of(fn, procedure)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # the function's own; what it returns is what counts
        clock = Clock(seconds, (lambda _: None) if quiet else _to_standard_error)
        request = Request(name or name_of(fn), k, n, off_policy, kind, seed, clock)
        if chosen is not None:
            result = judge_procedure(fn, chosen, request, options)
        else:
            result = judge(fn, request)
    if not quiet:
        print(result, file=file or sys.stdout)
    return result


def _to_standard_error(text: str) -> None:
    print(f"conformance: {text}", file=sys.stderr, flush=True)
