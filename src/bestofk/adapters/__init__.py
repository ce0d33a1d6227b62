"""bestofk's objectives inside other trainers: one module per host, imported only when asked for.

An adapter translates the host's tensors to groups, calls `bestofk.objectives` and translates back.
It holds no mathematics. `group_advantages` and `best_of_k_metrics` serve any host.
"""

import importlib.util

if importlib.util.find_spec("torch") is None:
    raise ModuleNotFoundError(
        "bestofk.adapters needs torch, which verl and other hosts bring along; "
        "for TRL: pip install 'bestofk[trl]'",
        name="torch",
    )

from .groups import best_of_k_metrics, group_advantages

__all__ = ["best_of_k_metrics", "group_advantages"]
