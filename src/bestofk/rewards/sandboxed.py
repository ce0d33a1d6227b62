"""Judging functions that run in the sandbox: value in, value out, nothing else crosses."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bestofk.rewards.base import BatchVerifier, as_verdict
from bestofk.rewards.functions import arguments_of
from bestofk.sandbox import CallOutcome, Sandbox
from bestofk.types import Prompt, Status, Verdict

CAUSED_BY_TEXT: tuple[Status, ...] = ("timeout", "memory", "crashed")


class LazySandbox:
    """A sandbox that starts when first used, and again after a close or in another process."""

    def __init__(self, sandbox: Sandbox | None = None, **options: Any) -> None:
        self._sandbox, self._options, self._lock = sandbox, options, threading.Lock()

    def get(self) -> Sandbox:
        with self._lock:
            if self._sandbox is None:
                self._sandbox = Sandbox(**self._options)
            return self._sandbox

    def close(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(LazySandbox, **self._options), ()


class SandboxedVerifier(BatchVerifier):
    """One judging function, called inside the sandbox.

    The function is looked up there by its module and name, so it must be at the top level of an
    importable module. Its arguments are passed by name; it returns a float, a bool or a Verdict.
    """

    def __init__(self, judge: Any, *, tier: int = 1) -> None:
        module, name = judge.__module__, getattr(judge, "__qualname__", "")
        resolved = getattr(sys.modules.get(module), name, None)
        if module == "__main__" or "." in name or resolved is not judge:
            raise ValueError(
                f"a sandboxed judging function is defined at the top level of an importable "
                f"module, {name or judge!r} of {module!r} is not; move it to a file of its own"
            )
        self.name, self.arguments = name, arguments_of(judge)
        self.reads_messages = "messages" in self.arguments.fields
        self._target = f"{module}:{name}"
        self._sandbox = LazySandbox(
            tier=tier,
            packages="all",
            paths=(str(_root(judge, module)),),
            preload=("bestofk.rewards.sandboxed",),
        )

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        self.arguments.check(prompts)

    def judge_batch(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[Verdict]:
        self.arguments.check(prompts)
        batch = [
            [self._target, self._values(prompt, text)]
            for prompt, text in zip(prompts, texts, strict=True)
        ]
        outcomes = self._sandbox.get().call_many("bestofk.rewards.sandboxed:call_judge", batch)
        return [self._verdict(outcome) for outcome in outcomes]

    def _values(self, prompt: Prompt, text: str) -> dict[str, Any]:
        arguments = self.arguments.of_pair(prompt, text)
        return arguments | {"prompt": vars(prompt)} if "prompt" in arguments else arguments

    def _verdict(self, outcome: CallOutcome) -> Verdict:
        if outcome.status in CAUSED_BY_TEXT:
            return caused_by_text(outcome)
        if outcome.status != "ok":  # it raised, or the sandbox failed: broken, not wrong
            return Verdict.unscored(f"{self.name}: {outcome.status} {outcome.detail}"[:500])
        try:
            verdict = Verdict(**outcome.value)
        except (TypeError, ValueError) as error:
            return Verdict.unscored(f"{self.name} returned no verdict: {error}"[:500])
        return replace(verdict, cpu_seconds=outcome.cpu_seconds, tier=outcome.tier)

    def close(self) -> None:
        self._sandbox.close()


def caused_by_text(outcome: CallOutcome) -> Verdict:
    """Zero for an outcome that the judged text brought about."""
    status: Status = next((each for each in CAUSED_BY_TEXT if each == outcome.status), "crashed")
    detail = outcome.detail[:500]
    return Verdict(0.0, status, cpu_seconds=outcome.cpu_seconds, tier=outcome.tier, detail=detail)


def _root(judge: Any, module: str) -> Path:
    """The folder from which the function's module is imported."""
    file = Path(inspect.getfile(judge)).resolve()
    return file.parents[module.count(".") + (file.name == "__init__.py")]


def call_judge(target: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Inside the sandbox: call the function; the fields of its verdict."""
    import importlib

    module, _, name = target.partition(":")
    judge = getattr(importlib.import_module(module), name)
    if "prompt" in arguments:
        arguments["prompt"] = Prompt(**arguments["prompt"])
    judgement = judge(**arguments)
    if inspect.iscoroutine(judgement):
        import asyncio

        judgement = asyncio.run(judgement)
    verdict = as_verdict(judgement)
    return {**vars(verdict), "parts": dict(verdict.parts)}
