"""Stands where flash-attn would be, which cannot be built without CUDA.

OpenRLHF imports a few of its names at the top of a module whose functions no test here calls;
whoever calls one is told so. A machine that has flash-attn uses that.
"""

from collections.abc import Callable
from typing import Any, NoReturn


def absent(name: str) -> Callable[..., NoReturn]:
    def call(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(f"flash_attn's {name} was called, and flash-attn needs CUDA")

    return call
