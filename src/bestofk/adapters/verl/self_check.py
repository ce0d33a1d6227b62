"""Is the plug-in where verl looks for it, and do the settings train the objective?

verl hides the error of a plug-in that failed to load; this does not.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.metadata import entry_points, version
from typing import Any

from bestofk.adapters.inner_steps import check_version

from .ppo_settings import LEAST, MODULE, NAME, check_settings, exact_loss


def check(config: Any = None) -> str:
    """A line that says what verl will use in this process, and one for each biased setting.

    Args:
        config: verl's whole configuration; then its settings are checked too.

    Raises:
        RuntimeError: verl has no estimator `bestofk` here (why, and what to do).
        ValueError: the configuration does not use it, or a setting does not train the objective.
    """
    import verl  # loads the plug-ins
    from verl.trainer.ppo import core_algos

    result = core_algos.ADV_ESTIMATOR_REGISTRY.get(NAME)
    if result is None or result.__module__ != MODULE:
        raise RuntimeError(
            f"verl {verl.__version__} has no estimator {NAME!r} here: {_why(result)}"
        )
    check_version("verl", verl.__version__, LEAST)
    registered = f"bestofk {version('bestofk')} is registered with verl {verl.__version__}"
    if config is None:
        return registered
    objective, biased = check_settings(config)
    n, exact = config.actor_rollout_ref.rollout.n, exact_loss(config)
    trained = f"objective {objective}, {n} samples per prompt"
    first = f"{registered}: {trained}" + (", exact off-policy advantages" if exact else "")
    return "\n".join([first, *(f"biased update: {each}" for each in biased)])


def _why(registered: Any) -> str:
    if registered is not None:
        return f"the name is taken by {registered.__module__}.{registered.__qualname__}"
    requested = NAME in [point.name for point in entry_points(group="verl.plugins")]
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip().lower()
    if requested and policy != "auto" and NAME not in [part.strip() for part in policy.split(",")]:
        return f"VERL_USE_EXTERNAL_PLUGINS={policy} leaves it out: unset it, or add {NAME}"
    if not requested:
        return (
            "this environment does not list its entry point: install bestofk again with pip, "
            f"or set VERL_USE_EXTERNAL_MODULES={MODULE}"
        )
    try:
        importlib.import_module(MODULE)
    except Exception as error:
        return f"its import fails with {type(error).__name__}: {error}"
    return "it was imported only now: import verl in a fresh process"


def main(argv: list[str]) -> int:
    """`python -m bestofk.adapters.verl [overrides of verl's main_ppo]`."""
    try:
        print(check(_composed(argv) if argv else None))
    except (RuntimeError, ValueError) as error:
        print(f"bestofk.adapters.verl: {error}", file=sys.stderr)
        return 1
    return 0


def _composed(overrides: list[str]) -> Any:
    from hydra import compose, initialize_config_module
    from hydra.errors import HydraException

    try:
        with initialize_config_module("verl.trainer.config", version_base=None):
            return compose("ppo_trainer", overrides=overrides)
    except HydraException as error:
        raise ValueError(f"verl's configuration does not accept this: {error}") from error
