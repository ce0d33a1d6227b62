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
    ("indentation", "def f(x):\nreturn 1", None, 0.0, ("unparsed",)),
    ("null-byte", "def f(x): return 1 # \0", None, 0.0, ("unparsed",)),
    ("lone-surrogate", "def f(x): return '\ud800'", None, 0.0, ("unparsed",)),
]  # fmt: skip

ESCAPES = [
    ("out-of-band", """
import socket
channel = socket.socket(fileno=os.dup(3))
tried("a byte beside the stream", lambda: channel.send(b"x", socket.MSG_OOB))
tried("a byte that is urgent, and more", lambda: channel.send(b"x", socket.MSG_OOB | socket.MSG_DONTWAIT))
a, b = socket.socketpair()
if a.send(b"x", socket.MSG_NOSIGNAL) != 1 or b.recv(1) != b"x": worked.append("a plain byte cannot be sent")
"""),
    ("devices", """
for path in ("/dev/null", "/dev/zero", "/dev/full", "/dev/urandom"):
    if os.path.exists(path):
        status = os.stat(path)
        tried("chmod " + path, lambda: os.chmod(path, status.st_mode & 0o7777))
        tried("utime " + path, lambda: os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns)))
        tried("fchmod " + path, lambda: os.fchmod(os.open(path, os.O_RDONLY), status.st_mode & 0o7777))
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
