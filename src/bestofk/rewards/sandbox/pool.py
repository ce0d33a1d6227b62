"""The pool of sandbox workers, as the rest of the project sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from .outcome import Limits, Outcome


class SandboxError(RuntimeError):
    """The sandbox cannot keep its promise on this machine."""


class Sandbox:
    """A pool of workers at one tier.

    Args:
        tier: the least tier that will do; a machine that offers less raises `SandboxError`.
            3 = root: own namespaces and user id per worker; 2 = user namespaces (bubblewrap where
            it is needed for that); 1 = landlock and seccomp, nothing writable; 0 = limits only,
            refused without `allow_unsafe=True`.
        at_most: use no more than this tier (to test a lower one); loud when it costs safety.
        workers: programs run at once; the number of usable cores unless told.
        limits: default limits of every run.
        packages: what can be imported besides the standard library: names, or "all".
        paths: further folders on the import path.
        preload: modules imported once, in the fork server.
    """

    def __init__(
        self,
        *,
        tier: int = 1,
        at_most: int = 3,
        workers: int | None = None,
        limits: Limits | None = None,
        packages: Sequence[str] | Literal["all"] = (),
        paths: Sequence[str] = (),
        preload: Sequence[str] = (),
        allow_unsafe: bool = False,
    ) -> None:
        raise NotImplementedError

    def call(
        self, target: str, args: Sequence[Any] = (), *, limits: Limits | None = None
    ) -> Outcome:
        """`module:function` called with `args` in the sandbox; see the package's docstring."""
        raise NotImplementedError

    def call_many(
        self, target: str, batch: Sequence[Sequence[Any]], *, limits: Limits | None = None
    ) -> list[Outcome]:
        """One outcome per argument list, in order, spread over the workers."""
        raise NotImplementedError

    def close(self) -> None:
        """End every worker."""
        raise NotImplementedError

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
