"""The verifier of `chaos.py`: an honest or a wrong program in the sandbox, and calls that break.

The truth is known without the sandbox: a completion with a digit in it becomes a right program.
"""

from __future__ import annotations

import os
import random

from bestofk.rewards import verifier
from bestofk.types import Prompt, Verdict

code = verifier("code")
chance = random.SystemRandom()


def truth(text: str) -> float:
    """The reward a completion deserves."""
    return float(any(character.isdigit() for character in text))


def judge(prompt: Prompt, completion: str) -> Verdict:
    """Run a program that is right where the truth is 1; break as often as $CHAOS_BREAKS says."""
    if chance.random() < float(os.environ.get("CHAOS_BREAKS", "0")):
        with open(os.environ["CHAOS_LOG"], "ab") as log:
            log.write(b"b")
        raise ConnectionError("the judge is not there")
    right = int(truth(completion))
    program = f"```python\ndef f(x):\n    return x + {right}\n```"
    asked = Prompt(prompt.id, "", "code", {"asserts": ["assert f(2) == 3", "assert f(5) == 6"]})
    verdict = code([asked], [program])[0]
    with open(os.environ["CHAOS_DONE"], "ab") as log:
        log.write(b".")
    if verdict.status != "unscored" and verdict.reward != right:
        with open(f"{os.environ['CHAOS_LOG']}.wrong", "a", encoding="utf-8") as wrong:
            wrong.write(f"{verdict}\n")
    return verdict
