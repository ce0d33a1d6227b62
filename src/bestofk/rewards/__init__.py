"""Rewards: a verifier takes prompts and completions and returns as many verdicts, in order.

>>> from bestofk.types import Prompt
>>> spec = {"numbers": [3, 8], "target": 24, "operators": "+-*/"}
>>> countdown = verifier("countdown")
>>> [v.reward for v in countdown([Prompt("a", "...", "countdown", spec)], ["<answer>3*8</answer>"])]
[1.0]
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from bestofk.messages import unknown
from bestofk.rewards.base import (
    BatchVerifier,
    PairVerifier,
    TooManyUnscored,
    UnscoredGuard,
    judge,
    prepare,
    refusals,
)
from bestofk.rewards.combine import checked_weight, gated, scored_by, weighted, with_scores
from bestofk.rewards.functions import (
    BatchFunctionVerifier,
    FunctionVerifier,
    arguments_of,
    load_function,
)
from bestofk.sections import check_options

__all__ = [
    "VERIFIERS",
    "BatchVerifier",
    "PairVerifier",
    "TooManyUnscored",
    "UnscoredGuard",
    "combined",
    "from_function",
    "gated",
    "judge",
    "load_function",
    "prepare",
    "refusals",
    "scored_by",
    "verifier",
    "weighted",
    "with_scores",
]

# name: module and the function in it that builds the verifier; imported when asked for
VERIFIERS = {
    "code": "bestofk.rewards.code.judge_programs:CodeVerifier",
    "construct": "bestofk.rewards.puzzles.judge_construct:verifier",
    "countdown": "bestofk.rewards.puzzles.judge_countdown:verifier",
    "exact": "bestofk.rewards.text:exact",
    "format": "bestofk.rewards.text:form",
    "gym": "bestofk.rewards.puzzles.judge_gym:verifier",
    "maths": "bestofk.rewards.maths.judge_maths:verifier",
    "maze": "bestofk.rewards.puzzles.judge_maze:verifier",
}

LEARNED = {
    "reward-model": "bestofk.rewards.reward_models:RewardModel",
    "reward-model at": "bestofk.rewards.reward_models:ServedRewardModel",
    "judge": "bestofk.rewards.judges:judge",
    "judge at": "bestofk.rewards.judges:judge",
}
"""Judges that are models, by what stands before the colon, and behind a server."""


def verifier(name: str, /, **options: Any) -> BatchVerifier:
    """The verifier of that name; or your own function or verifier: "package.module:name" or
    "folder/myreward.py:name"; or a model that judges: "reward-model:FOLDER", "reward-model:URL",
    "judge:MODEL@URL"."""
    kind, colon, source = name.partition(":")
    if colon and kind in LEARNED:
        factory = load_function(LEARNED[f"{kind} at" if "://" in source else kind])
        check_options(f"verifier {kind}", factory, options)
        return factory(source, **options)
    if name in VERIFIERS:
        factory = load_function(VERIFIERS[name])
        check_options(f"verifier {name}", factory, options)
        for each in inspect.signature(factory).parameters.values():
            is_needed = each.kind is each.KEYWORD_ONLY and each.default is each.empty
            if is_needed and each.name not in options:
                raise ValueError(f"verifier {name} needs the option {each.name}")
        return factory(**options)
    if name.endswith(".py"):
        raise ValueError(f"verifier {name!r} is a file: name the function in it, '{name}:reward'")
    if ":" not in name:
        raise unknown("verifier", name, [*VERIFIERS, "package.module:function", "file.py:function"])
    check_options(f"verifier {name}", from_function, {"function": None} | options)
    return from_function(load_function(name), **options)


def from_function(
    function: Any,
    *,
    threads: int | None = None,
    time_limit: float = 60.0,
    sandbox: bool = False,
    tier: int = 1,
) -> BatchVerifier:
    """A verifier from a function of yours, which returns a number, a bool or a `Verdict`.

    Its arguments are passed by name:

    - `(completion, answer, …)`: the text; the others are fields of the row.
    - `(prompt, completion, …)`: a `Prompt` too.
    - `(prompts, completions, **columns)`: a batch, as TRL's reward functions; returns a list with
      one reward for each completion.

    Each may be `async def`. Any other signature is an error here, a field that the rows lack before
    the first sample.

    It must answer whatever the model writes. A call that raises is repeated and then unscored, with
    the file, the line and the sample's id.

    Args:
        threads: calls at once, for functions that wait (for a judge behind HTTP, say); by default
            16 of an async function, which share one event loop, and 1 of any other.
        time_limit: seconds; a call that takes longer is unscored at once, and named.
        sandbox, tier: run each call in a sandbox of at least that tier, with its limits: for
            functions that pass what a model wrote to a library they do not trust.

    A verifier is returned as it is.
    """
    if isinstance(function, BatchVerifier):
        if threads not in (None, 1) or sandbox:
            raise ValueError(
                f"threads and sandbox are for functions, {function.name} is a verifier already"
            )
        return function
    if arguments_of(function).is_batch:
        if sandbox or threads not in (None, 1):
            raise ValueError(
                f"{function.__name__} takes whole batches: threads and sandbox are for functions "
                "of one completion"
            )
        return BatchFunctionVerifier(function, time_limit=time_limit)
    if not sandbox:
        return FunctionVerifier(function, threads=threads, time_limit=time_limit)
    from bestofk.rewards.sandboxed import SandboxedVerifier

    return SandboxedVerifier(function, tier=tier)


def combined(parts: Sequence[Mapping[str, Any]]) -> BatchVerifier:
    """A reward from declarations, as a recipe states them.

    Each part is {"verifier": name, "weight": 1.0, ...options} or {"verifier": name, "gate": True,
    ...options}: the reward is the weighted mean of the parts, and 0 unless every gate gives 1.

    >>> combined([{"verifier": "format", "gate": True}, {"verifier": "maze"}]).name
    'format or 0, maze'
    """
    if not parts:
        raise ValueError("a reward needs at least one part, got none")
    gates: list[BatchVerifier] = []
    weights: list[tuple[float, BatchVerifier]] = []
    for part in parts:
        if not isinstance(part, Mapping):
            raise ValueError(f'a part of a reward reads {{"verifier": name, ...}}, got {part!r}')
        options = dict(part)
        name, weight = options.pop("verifier", None), options.pop("weight", None)
        is_gate = options.pop("gate", False)
        if name is None:
            raise ValueError(f"a part of a reward names its verifier, got {dict(part)}")
        if not isinstance(is_gate, bool):
            raise ValueError(f"gate is true or false, got {is_gate!r} for {name}")
        if is_gate and weight is not None:
            raise ValueError(f"a part is a gate or has a weight, {name} states both")
        built = verifier(name, **options)
        if is_gate:
            gates.append(built)
        else:
            weights.append((checked_weight(1.0 if weight is None else weight, name), built))
    if not weights:
        raise ValueError("a reward needs a part that is not a gate, got only gates")
    reward: BatchVerifier = weights[0][1] if len(weights) == 1 else weighted(*weights)
    for gate in reversed(gates):
        reward = gated(gate, reward)
    return reward
