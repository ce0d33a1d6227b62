"""Attack a worker before trusting it: a tier is offered only where none of this succeeds.

Looking at kernel versions or at PATH says what might work; pods, security modules and old kernels
make exceptions. So each worker's configuration is tried by a hostile program first.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from .guest.codec import CodecError, decode, encode
from .outcome import Limits
from .worker import Worker, WorkerLost, request

# What the hostile program does. It returns the names of attacks that worked.
ATTACKS = r"""
import ctypes, os, socket, resource

def attacks(secret_path, token, port, abstract, mark, memory, descriptors):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    worked = []
    here = ("127.0.0.1", port)

    def tried(name, action):
        try:
            if action():
                worked.append(name)
        except BaseException:
            pass

    def read(path):
        with open(path, "rb") as file:
            return file.read(4096)

    def connect(family, kind, address):
        with socket.socket(family, kind) as s:
            s.settimeout(2)
            s.connect(address)
            return True

    def fork():
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        return True

    def leave_marks():
        for folder in ("/", "/tmp", "/var/tmp", "/dev/shm", os.path.dirname(secret_path)):
            try:
                with open(os.path.join(folder, mark), "w") as file:
                    file.write("here")
            except OSError:
                pass

    def open_many():
        return len([os.dup(0) for _ in range(descriptors + 8)])

    def inherited():
        found = []
        for number in range(4, 1024):  # 0 to 2, and 3: its own channel
            try:
                os.fstat(number)
                found.append(number)
            except OSError:
                pass
        return found

    def raise_limit():
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        return True

    def call(number, *arguments):
        return libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) for a in arguments]) >= 0

    tried("read a file of the host", lambda: token.encode() in read(secret_path))
    tried("read another process's environment", lambda: read("/proc/1/environ") is not None)
    tried("list processes", lambda: os.listdir("/proc"))
    tried("leave a file outside", leave_marks)
    tried("truncate a file of the host", lambda: os.open(secret_path, os.O_RDONLY | os.O_TRUNC))
    tried("truncate a file by name", lambda: os.truncate(secret_path, 0) is None)
    tried("change a file's mode", lambda: os.chmod(secret_path, 0o666) is None)
    tried("change a file's times", lambda: os.utime(secret_path) is None)
    tried("change a device's mode", lambda: os.chmod("/dev/null", 0o666) is None)
    tried("connect over TCP", lambda: connect(socket.AF_INET, socket.SOCK_STREAM, here))
    tried("send over UDP", lambda: connect(socket.AF_INET, socket.SOCK_DGRAM, here))
    tried("reach an abstract socket", lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, abstract))
    tried("start a process", fork)
    tried("signal its parent", lambda: os.kill(os.getppid(), 0) is None)
    tried("signal process 1", lambda: os.kill(1, 0) is None)
    tried("signal everybody", lambda: os.kill(-1, 0) is None)
    tried("become root", lambda: os.setuid(0) is None)
    tried("make a user namespace", lambda: libc.unshare(0x10000000) == 0)
    tried("trace its parent", lambda: libc.ptrace(16, os.getppid(), 0, 0) == 0)
    tried("use io_uring", lambda: call(425, 1, id(ctypes.create_string_buffer(256))))
    tried("use userfaultfd", lambda: call(323 if os.uname().machine == "x86_64" else 282, 0))
    tried("find a descriptor of its parent", inherited)
    tried("raise its memory limit", raise_limit)
    tried("use more memory than allowed", lambda: bytearray(memory * 2))
    tried("open more files than allowed", open_many)
    return worked
"""


@contextlib.contextmanager
def _bait() -> Iterator[tuple[str, str, int, str]]:
    """A readable secret, a listening port and an abstract socket that no program may reach."""
    token, name = secrets.token_hex(16), secrets.token_hex(8)
    folder = tempfile.mkdtemp(prefix="bestofk-selftest-")
    try:
        os.chmod(folder, 0o777)
        path = os.path.join(folder, "secret")
        with open(path, "w") as file:
            file.write(token)
        os.chmod(path, 0o666)
        with (
            socket.create_server(("127.0.0.1", 0)) as tcp,
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as local,
        ):
            local.bind(f"\0bestofk-{name}")
            local.listen(1)
            yield path, token, tcp.getsockname()[1], f"\0bestofk-{name}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def attack(worker: Worker, limits: Limits) -> list[str]:
    """Names of the attacks that worked against this worker; an empty list is what we want.

    Raises:
        OSError: the hostile program could not be run at all.
    """
    patient = replace(  # limits that are short for programs must not make a cold machine fail
        limits,
        cpu_per_test=max(limits.cpu_per_test, 20.0),
        cpu_per_program=max(limits.cpu_per_program, 20.0),
        blocked_per_program=max(limits.blocked_per_program, 20.0),
    )
    with _bait() as (path, token, port, abstract):
        mark = f"bestofk-{token[:12]}"
        args = [path, token, port, abstract, mark, limits.memory, limits.descriptors]
        job: dict[str, Any] = {
            "mode": "record",
            "entry_point": "attacks",
            "cases": [(args, {}, None)],
        }
        try:
            packet, wall = request(eager=True, pure=False, limits=patient)
            report, data = worker.check(packet, wall, ATTACKS.encode(), encode(job))
            ((status, value),) = decode(data)
        except (WorkerLost, CodecError, ValueError) as error:
            raise OSError(f"the self-test did not finish: {error}") from error
        if status != "ok":
            raise OSError(f"the self-test did not finish: {value} ({report['reason']})")
        for folder in ("/", "/tmp", "/var/tmp", "/dev/shm", os.path.dirname(path)):
            mark_file = os.path.join(folder, mark)
            if os.path.lexists(mark_file):
                value.append(f"leave a file in {folder}")
                with contextlib.suppress(OSError):
                    os.unlink(mark_file)
    return value
