"""bestofk: train language models for the way they are deployed: draw k samples, keep the best."""

from bestofk.objectives import advantages, max_at_k, objective, pass_at_k

__version__ = "0.1.0"
__all__ = ["advantages", "max_at_k", "objective", "pass_at_k"]
