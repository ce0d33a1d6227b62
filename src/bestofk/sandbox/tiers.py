"""The tiers of isolation, and which of them this machine offers."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

from .outcome import Limits
from .selftest import attack
from .worker import Worker

TIERS = {
    3: "own namespaces, root file system and user id per worker (root)",
    2: "own namespaces and root file system per worker (user namespaces)",
    1: "Landlock and seccomp: nothing readable but the library",
    0: "limits only: no promise about files",
}


class SandboxError(RuntimeError):
    """The sandbox cannot keep its promise on this machine."""


def strongest(
    configuration: Callable[[int], dict[str, Any]], limits: Limits, lowest: int, highest: int
) -> tuple[Worker, int]:
    """A worker of the strongest tier that withstands the self-test, and that tier.

    Args:
        configuration: what a worker of a tier starts from.

    Raises:
        SandboxError: no tier from `highest` down to `lowest` does.
    """
    not_offered = []
    for tier in range(highest, lowest - 1, -1):
        configured = configuration(tier)
        if configured["writable"] and tier < 2:
            not_offered.append(
                f"tier {tier}: writable=True needs a file system of its own, which only "
                "tiers 3 and 2 have"
            )
            continue
        if tier == 3 and os.geteuid() != 0:
            not_offered.append("tier 3: needs root")
            continue
        worker = None
        try:
            worker = Worker(configured)
            worked = attack(worker, limits) if tier else []
        except OSError as error:
            not_offered.append(f"tier {tier}: {error}")
        else:
            if not worked:
                _warn_of_low_tier(tier, highest, not_offered)
                return worker, tier
            not_offered.append(f"tier {tier}: a hostile program could {', '.join(worked)}")
        if worker is not None:
            worker.close()
    raise SandboxError(
        f"no sandbox of tier {lowest} or better on this machine; {'; '.join(not_offered)}; "
        "`bestofk doctor` says what to install"
    )


def _warn_of_low_tier(tier: int, highest: int, not_offered: list[str]) -> None:
    if tier == 0 or highest < 3:
        warnings.warn(
            f"the sandbox runs at tier {tier} ({TIERS[tier]}): at_most={highest}"
            + "".join(f"; {reason}" for reason in not_offered),
            RuntimeWarning,
            stacklevel=4,
        )
