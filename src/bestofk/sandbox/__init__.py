"""Run what a model wrote where it can do no harm: a pool of sandboxed fork servers.

    with Sandbox() as sandbox:              # the strongest tier this machine offers, 1 or better
        outcome = sandbox.call("json:loads", ["[1, 2]"])
        outcome.status, outcome.value       # "ok", [1, 2]
        sandbox.call_many("json:loads", [["1"], ["{"]])    # as many outcomes, in order

`call` imports `module`, calls `function(*args)` in a fresh process that has no network, no secrets,
no other process in reach, and limits on CPU, memory, files and output, and brings the result back
by value. Nothing but plain values crosses the border in either direction, so nothing that comes
back can run code here. It never raises for what the text made the function do: the outcome's status
says what happened (`bestofk.sandbox.CallOutcome`). It is thread-safe; from asyncio use
`await asyncio.to_thread(sandbox.call, ...)`.

A scorer that executes model text inside `call` can be made to return anything by that text: the
sandbox protects the machine, not the scorer's opinion. Programs are judged by
`bestofk.rewards.code`, where a checker in another process holds the expected results.
"""

from __future__ import annotations

from .guest.codec import CodecError, decode, encode
from .guest.same_values import same, same_text
from .guest.wire import RESULT
from .jobs import JobResult
from .machine_memory import available_memory, shortage
from .outcome import CallOutcome, CallStatus, Limits, printable
from .pool import Sandbox
from .tiers import TIERS, SandboxError

__all__ = [
    "RESULT",
    "TIERS",
    "CallOutcome",
    "CallStatus",
    "CodecError",
    "JobResult",
    "Limits",
    "Sandbox",
    "SandboxError",
    "available_memory",
    "decode",
    "encode",
    "printable",
    "same",
    "same_text",
    "shortage",
]
