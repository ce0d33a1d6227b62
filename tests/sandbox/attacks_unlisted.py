# ruff: noqa: E501 - programs, one per line
"""Hostile programs that are not on the list of twenty-seven groups: data for attacks.py."""

from __future__ import annotations

from typing import Any

DRIP = """
import marshal, os, struct, threading, time
def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end: pass
def drip(drops, drop):
    begin = time.process_time()
    def run():
        for n in range(1, drops + 1):  # the last one after .7 CPU s, however busy the machine is
            while time.process_time() - begin < .7 * n / drops: time.sleep(.005)
            os.write(3, drop)
    thread = threading.Thread(target=run); thread.start(); burn(.75); thread.join()
"""
BY_LOADING = (
    DRIP
    + """
os.write(3, struct.pack("<IIB", 100, 0, 0)); drip(100, b"x")
def f(x): return x + 1
"""
)
BY_ANSWERING = (
    DRIP
    + """
os.write(3, struct.pack("<IIB", 0, 0, 0))
rest = b""
while True:
    while len(rest) < 9: rest += os.read(3, 65536)
    size, number, _ = struct.unpack("<IIB", rest[:9])
    while len(rest) < 9 + size: rest += os.read(3, 65536)
    path, args, kwargs = marshal.loads(rest[9:9 + size]); rest = rest[9 + size:]
    head, items = b"l" + struct.pack("<I", 100), 100 * b"N"
    os.write(3, struct.pack("<IIB", len(head) + len(items), number, 0) + head); drip(100, b"N")
"""
)
SLEEPER = "import os, struct, time\nos.write(3, struct.pack('<IIB', 0, 0, 0))\ntime.sleep(1000)"
COLLIDING = """
import os, struct
def f(x):
    if x == 1: return 2
    members = [(i * (2 ** 61 - 1)) for i in range(1, 60000)]
    body = b"S" + struct.pack("<I", len(members)) + b"".join(b"i" + struct.pack("<I", 10) + m.to_bytes(10, "little") for m in members)
    frame = struct.pack("<IIB", len(body), 2, 0) + body
    while frame: frame = frame[os.write(3, frame):]
    os._exit(0)
"""
# Each of these returns what is right only if it worked.
WAITER = """
import ctypes, os
libc = ctypes.CDLL(None)
def f(x):
    while True: libc.syscall(324 if os.uname().machine == "x86_64" else 283, 1, 0, 0)
"""
KEEPER = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
def f(x):
    for _ in range(4):  # twice the limit, of which the last page stays mapped
        at = libc.mmap(None, ctypes.c_size_t(64 << 20), 3, 0x21, -1, ctypes.c_size_t(0))
        ctypes.memset(at, 1, 64 << 20)
        if libc.munmap(ctypes.c_void_p(at + 4096), ctypes.c_size_t((64 << 20) - 4096)): raise OSError
    return x + 1
"""
MANY_TABLES = """
import ctypes, os, threading
libc = ctypes.CDLL(None)
made, done = [], threading.Event()
def open_some():
    libc.syscall(436, 0, 0, 2)
    made.extend(os.dup(0) for _ in range(10)); done.wait()
def f(x):
    threads = [threading.Thread(target=open_some) for _ in range(4)]
    [t.start() for t in threads]
    [t.join(.2) for t in threads]
    done.set()
    if len(made) < 40: raise OSError
    return x + 1
"""
ABSENT = {
    "check": "def check(candidate):\n    try:\n        candidate(1)\n        refused = False\n    except Exception:\n        refused = True\n    assert refused",
    "entry_point": "f",
}
SWALLOWED = {
    "check": "def check(candidate):\n    try:\n        refused = candidate(1) == 5\n    except:\n        refused = True\n    assert refused",
    "entry_point": "f",
}
PRINTED = {"asserts": ["def g(x): raise KeyError(x)", "assert f(1) == 2", "assert g(f(2))"]}

# group, name, program, tests (None: the usual ones), reward, statuses
PROGRAMS: list[tuple[str, str, dict[str, Any] | None, float, tuple[str, ...]]] = [
    ("drip-while-loading", BY_LOADING, None, 0.0, ("timeout", "crashed")),
    ("drip-an-answer", BY_ANSWERING, {"asserts": ["assert f(1) == [None] * 100", "assert f(2) == [None] * 100"]}, 0.0, ("timeout",)),
    ("never-reads", SLEEPER, {"entry_point": "f", "calls": [{"args": ["x" * 500_000], "expected": 1}]}, 0.0, ("timeout",)),
    ("colliding-members", COLLIDING, {"asserts": ["assert f(1) == 2", "assert f(2) == 3"]}, 0.5, ("partial",)),
    ("integer-too-long-to-print", "def f(x): return 2 if x == 1 else 10 ** 10000", PRINTED, 0.5, ("partial",)),
    ("absent-function-where-an-error-is-wanted", "def g(x): return 1", ABSENT, 0.0, ("incorrect",)),
    ("death-where-anything-is-caught", "import os\ndef f(x): os._exit(0)", SWALLOWED, 0.0, ("crashed",)),
    ("waits-unkillably", WAITER, None, 0.0, ("timeout",)),
    ("shared-memory-kept", KEEPER, None, 0.0, ("crashed", "incorrect")),
    ("descriptors-of-each-thread", MANY_TABLES, None, 0.0, ("incorrect",)),
    ("indentation", "def f(x):\nreturn 1", None, 0.0, ("unparsed",)),
    ("null-byte", "def f(x): return 1 # \0", None, 0.0, ("unparsed",)),
    ("lone-surrogate", "def f(x): return '\ud800'", None, 0.0, ("unparsed",)),
]  # fmt: skip

ESCAPES = [
    ("out-of-band", """
import socket
channel = sys.kept = socket.socket(fileno=3)
tried("a byte beside the stream", lambda: channel.send(b"x", socket.MSG_OOB))
tried("a byte that is urgent, and more", lambda: channel.send(b"x", socket.MSG_OOB | socket.MSG_DONTWAIT))
"""),
    ("numbers-that-the-kernel-counts", """
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM): tried(f"pair {kind}", lambda: socket.socketpair(socket.AF_UNIX, kind))
tried("pipe", os.pipe)
tried("pipe without flags", lambda: call(22, ctypes.create_string_buffer(8)) if X86 else False)
tried("number of the channel", lambda: os.fstat(3))
tried("number of the channel, by a path", lambda: os.stat(b"", dir_fd=3))
for name, x86, arm in (("fstat", 5, 80), ("newfstatat", 262, 79), ("statx", 332, 291)):
    arguments = (3, ctypes.create_string_buffer(256)) if name == "fstat" else (3, b"", ctypes.create_string_buffer(256), 0x1000)
    if name == "statx": arguments = (3, b"", 0x1000, 0x4000, ctypes.create_string_buffer(256))
    tried(name, lambda: call(x86 if X86 else arm, *arguments))
tried("number of mounts", lambda: call(332 if X86 else 291, -100, b"/", 0, 0x4000, ctypes.create_string_buffer(256)))
tried("copy of the channel", lambda: os.dup(3))
tried("copy of the channel, placed", lambda: os.dup2(3, 9))
tried("copy of the channel, by fcntl", lambda: __import__("fcntl").fcntl(3, 0, 9))
sys.kept = socket.socket(fileno=3)
tried("cookie", lambda: sys.kept.getsockopt(socket.SOL_SOCKET, 57, 8))
"""),
    ("devices", """
for path in ("/dev/null", "/dev/full", "/dev/urandom"):
    if os.path.exists(path):
        status = os.stat(path)
        tried("chmod " + path, lambda: os.chmod(path, status.st_mode & 0o7777))
        tried("utime " + path, lambda: os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns)))
        tried("fchmod " + path, lambda: os.fchmod(os.open(path, os.O_RDONLY), status.st_mode & 0o7777))
"""),
    ("waits-that-nobody-can-end", """
import mmap
for command in (1, 2, 4, 8, 16, 32, 64, 128, 256):
    tried(f"membarrier {command}", lambda: call(324 if X86 else 283, command, 0, 0))
stack = ctypes.create_string_buffer(1 << 16)
for flags in (0x10F00 | 0x4000, 0x3D0F00 | 0x4000, 0x4000 | 17, 0x4100 | 17):
    tried(f"clone with CLONE_VFORK {flags:x}", lambda: call(56 if X86 else 220, flags, (ctypes.addressof(stack) + 65000) & ~15, 0, 0, 0))
memory = mmap.mmap(-1, 1 << 22, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for advice in (9, 12, 20, 21, 22, 23, 25, 100, 101):
    tried(f"madvise {advice}", lambda: memory.madvise(advice))
memory.madvise(mmap.MADV_DONTNEED)
"""),
    ("beyond-the-limits", """
import fcntl, mmap
for flags in (2, 6): tried(f"close_range {flags}", lambda: call(436, 1000, 1001, flags))
if not call(436, 1000, 1001, 0): worked.append("close_range cannot be used")
tried("a thread with files of its own", lambda: call(56 if X86 else 220, 0x3D0F00 & ~0x400, 0, 0, 0, 0))
for flags in (0x21, 0x23, 0x4021): tried(f"shared memory {flags:x}", lambda: mmap.mmap(-1, 4096, flags=flags))
for mode in (os.O_RDONLY, os.O_RDWR): tried("/dev/zero", lambda: os.open("/dev/zero", mode))
r, w = 0, 1
a = sys.kept = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, 3)
for option in (socket.SO_SNDBUF, socket.SO_RCVBUF, 32, 33): tried(f"a larger buffer {option}", lambda: a.setsockopt(socket.SOL_SOCKET, option, 1 << 24))
for name, x86, arm in (("vmsplice", 278, 75), ("splice", 275, 76), ("tee", 276, 77), ("signalfd", 289, 74), ("timerfd", 283, 85), ("inotify", 294, 26), ("remap_file_pages", 216, 234), ("mlock", 149, 228), ("setpriority", 141, 140), ("sched_setattr", 314, 274), ("process_madvise", 440, 440)):
    tried(name, lambda: call(x86 if X86 else arm, r, 0, w, 0, 1, 0) or ctypes.get_errno() not in (1, 38))
"""),
    ("locks", """
import fcntl, struct
file = os.open(os.__file__, os.O_RDONLY)
asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
tried("who holds a lock", lambda: fcntl.fcntl(file, fcntl.F_GETLK, asked))
tried("flock", lambda: fcntl.flock(file, fcntl.LOCK_SH))
tried("lease", lambda: fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK))
tried("notify", lambda: fcntl.fcntl(os.open("/", os.O_RDONLY), fcntl.F_NOTIFY, fcntl.DN_ACCESS))
"""),
]  # fmt: skip
