"""bestofk: train language models for the way they are deployed: draw k samples, keep the best."""

from typing import TYPE_CHECKING, Any

from bestofk.objectives import advantages, max_at_k, objective, pass_at_k

if TYPE_CHECKING:
    from bestofk.conformance import conformance

__version__ = "0.1.0"
__all__ = ["advantages", "conformance", "max_at_k", "objective", "pass_at_k"]


def __getattr__(name: str) -> Any:
    if name == "conformance":
        from bestofk.conformance import conformance

        return conformance
    raise AttributeError(f"module 'bestofk' has no attribute {name!r}")
