"""Processes that begin with everything imported: PyTorch and transformers take seconds to import.

A server that has imported them and done nothing else forks a process for each command. `bestofk`
and `python` in its folder are clients that pass on their words, folder, environment and streams,
then signals, and end as the process ends. It is killed when its client is.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CLIENT = """
import json, os, signal, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect(sys.argv[1])
    asked = {"words": sys.argv[2:], "folder": os.getcwd(), "environment": dict(os.environ)}
    socket.send_fds(server, [json.dumps(asked).encode()], [0, 1, 2])
    process = int(server.recv(16))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(process, number))
    end = int(server.recv(16) or b"1")
if end < 0:
    signal.signal(-end, signal.SIG_DFL)
    os.kill(os.getpid(), -end)
sys.exit(end)
"""


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Path]:
    """A folder for PATH whose `bestofk` and `python` are warm."""
    (folder / "client.py").write_text(CLIENT)
    for name in ("bestofk", "python"):
        words = f'"{sys.executable}" -IS "{folder}/client.py" "{folder}/socket" {name} "$@"'
        (folder / name).write_text(f"#!/bin/sh\nexec {words}\n")
        (folder / name).chmod(0o755)
    command = [sys.executable, __file__, str(folder / "socket")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            yield folder
        finally:
            server.kill()


def serve(path: str) -> None:
    import peft  # noqa: F401
    import transformers  # noqa: F401

    import bestofk.training.train  # noqa: F401

    sys.path.remove(os.path.dirname(os.path.abspath(__file__)))
    os.fsync = lambda fd: None  # no test cuts the power
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the tests
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes that answer
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(path)
        server.listen()
        print("ready", flush=True)
        while True:
            client, _ = server.accept()
            if os.fork() == 0:
                server.close()
                break
            client.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, streams, _, _ = socket.recv_fds(client, 1 << 20, 3)
    child = os.fork()
    if child:
        client.send(str(child).encode())
        ended = os.pidfd_open(child)
        if ended not in select.select([ended, client.fileno()], [], [])[0]:
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with contextlib.suppress(OSError):
            client.send(str(code).encode())
        os._exit(0)
    client.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    end: Any = 0
    try:
        run(**json.loads(message))
    except SystemExit as error:
        end = error.code
    except BaseException:
        traceback.print_exc()
        end = 1
    if isinstance(end, str):
        print(end, file=sys.stderr)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if isinstance(end, str) else int(end or 0))  # taking all modules down takes seconds


def run(words: list[str], folder: str, environment: dict[str, str]) -> None:
    """What the interpreter does with these words, in a process that has been forked for them."""
    random.seed()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    name, *rest = words
    if name == "bestofk":
        from bestofk.cli import main

        sys.argv = words
        sys.exit(main())
    sys.argv = rest if rest[0] not in ("-c", "-m") else ["-c", *rest[2:]]
    if rest[0] == "-c":
        sys.path.insert(0, "")
        exec(compile(rest[1], "<string>", "exec"), {"__name__": "__main__"})
    elif rest[0] == "-m":
        sys.path.insert(0, folder)
        runpy.run_module(rest[1], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(rest[0])))
        runpy.run_path(rest[0], run_name="__main__")


if __name__ == "__main__":
    serve(sys.argv[1])
