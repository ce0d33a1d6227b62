"""Learning: groups + weights → one optimiser step.

learner = Learner(model, optimisation=Optimisation(lr=1e-5))
old = learner.score(groups)                                # π_old: the learner's own log-probs
for _ in range(inner_steps):
    log_ratio = learner.sequence_log_probs(groups) - old.log_prob     # (P, n), no gradient
    weights = objective(rewards, log_ratio=log_ratio)                 # plain numbers
    stats = learner.step(groups, weights)                             # any micro-batching
"""

from bestofk.learning.learner import Learner
from bestofk.learning.settings import Loss, NonFinite, Optimisation, Scores

__all__ = ["Learner", "Loss", "NonFinite", "Optimisation", "Scores"]
