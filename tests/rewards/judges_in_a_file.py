"""A judging function as a user would write it in a file, for the tests of the sandbox."""

from __future__ import annotations

import asyncio
import os

from bestofk.types import Prompt, Verdict


def judge(prompt: Prompt, completion: str) -> Verdict | float | None:
    match completion:
        case "loop":
            while True:
                pass
        case "raise":
            raise KeyError("a bug of ours")
        case "die":
            os._exit(3)
        case "none":
            return None
        case "secret":
            return os.path.exists(prompt.spec["secret"])
        case "verdict":
            return Verdict(0.0, "unparsed", passed=1, total=3, detail="seen", parts={"a": 0.5})
        case "nan":
            return float("nan")
    return eval(completion) / prompt.spec["scale"]


async def waiting(prompt: Prompt, completion: str) -> float:
    await asyncio.sleep(0.01)
    return eval(completion) / prompt.spec["scale"]
