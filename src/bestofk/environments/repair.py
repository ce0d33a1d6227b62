"""Programs in up to three turns, with the output of their shown tests: `environment = "repair"`."""

from __future__ import annotations

import json
import os
from typing import Any, ClassVar

from bestofk.rewards.code.judge_programs import CodeVerifier, with_shown_tests
from bestofk.types import Prompt

PROGRAMS = 3
"""Programs that a trajectory may have."""
MOST = 3
"""Failed tests that are shown."""


class Repair:
    """Runs the tests that the prompt shows; the task's hidden tests judge the last program. Where
    a prompt shows none, it has one."""

    _verifier: ClassVar[CodeVerifier] = CodeVerifier()
    at_once: ClassVar[int] = len(os.sched_getaffinity(0))
    """Workers of the sandbox: no program waits for one while its time runs."""

    def reset(self, shown: list[Any] | str | None, **spec: Any) -> None:
        self._tests = [shown] if isinstance(shown, str) else list(shown or ())
        each = [shown] if isinstance(shown, str) else [[test] for test in self._tests]
        self._prompts = [
            with_shown_tests(Prompt("repair", "", "code", {**spec, "shown": test})) for test in each
        ]
        self._programs = 0

    def __call__(self, text: str) -> str | None:
        self._programs += 1
        if self._programs == PROGRAMS:
            return None
        verdicts = self._verifier(self._prompts, [text] * len(self._prompts))
        failed = [
            f"{test if isinstance(test, str) else json.dumps(test)}\n-> {each.detail}"
            for test, each in zip(self._tests, verdicts, strict=True)
            if each.status not in ("correct", "unscored")
        ]
        if not failed:
            return None
        listed = "\n".join(failed[:MOST])
        return (
            f"{len(failed)} of {len(verdicts)} shown tests fail:\n{listed}\n"
            "Correct the program and give it in full."
        )
