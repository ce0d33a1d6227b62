"""Learning: groups + weights → one optimiser step.

learner = Learner(model, optimizer=Optimizer(learning_rate=1e-5))
old = learner.log_probs(groups)                                # π_old: the learner's own log-probs
for _ in range(inner_steps):
    log_ratio = learner.sequence_log_probs(groups) - old.log_prob     # (P, n), no gradient
    weights = objective(rewards, log_ratio=log_ratio)                 # plain numbers
    stats = learner.step(groups, weights)                             # any micro-batching
"""

from typing import TYPE_CHECKING, Any

from bestofk.learning.settings import LogProbs, Loss, NonFinite, Optimizer

if TYPE_CHECKING:
    from bestofk.learning.learner import Learner

__all__ = ["Learner", "LogProbs", "Loss", "NonFinite", "Optimizer"]


def __getattr__(name: str) -> Any:
    """`Learner` imports PyTorch, so it is imported when it is used."""
    if name != "Learner":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from bestofk.learning.learner import Learner

    return Learner
