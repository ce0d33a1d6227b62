"""Judge programs with less than this machine allows: python in_a_pod.py no-admin|no-namespaces.

`no-admin` is a container that was given no CAP_SYS_ADMIN; `no-namespaces` one that also may not
make user namespaces (seccomp profiles of clusters refuse it). Prints the tier that was found and
what a right, a wrong and some hostile programs were worth there.
"""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path

from bestofk.rewards.code.judge_programs import CodeVerifier
from bestofk.sandbox import Sandbox
from bestofk.sandbox.guest import kernel, seccomp
from bestofk.types import Prompt

SYS_ADMIN = 21
NAMESPACES = 0x7E020000  # every CLONE_NEW* flag
PROGRAMS = {
    "right": "def f(x): return x + 1",
    "wrong": "def f(x): return x",
    "reads": "def f(x): return len(open('/etc/passwd').read()) and x + 1",
    "writes": "def f(x): open('/tmp/left', 'w').write('x'); return x + 1",
    "changes": "import os\ndef f(x): os.chmod('/tmp', 0o1777); return x + 1",
    "connects": "import socket\ndef f(x): socket.create_connection(('127.0.0.1', 9)); return x + 1",
    "forks": "import os\ndef f(x): os.fork() or os._exit(0); return x + 1",
    "signals": "import os\ndef f(x): os.kill(os.getppid(), 0); return x + 1",
}


def refuse_namespaces() -> None:
    unshare, clone, clone3 = (272, 56, 435) if kernel.MACHINE == "x86_64" else (97, 220, 435)
    refuse = seccomp._return(seccomp._error(errno.EPERM))
    code = [
        seccomp._load(0),
        seccomp._equal(unshare, 0, 1),
        refuse,
        seccomp._equal(clone3, 0, 1),
        seccomp._return(seccomp._error(errno.ENOSYS)),
        seccomp._equal(clone, 0, 3),
        seccomp._load(seccomp._argument(0)),
        seccomp._has_bits(NAMESPACES, 0, 1),
        refuse,
        seccomp._return(seccomp._ALLOW),
    ]
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    seccomp.install(b"".join(code))


def main() -> None:
    kernel.prctl(kernel.PR_CAPBSET_DROP, SYS_ADMIN)
    lines = Path("/proc/self/status").read_text().splitlines()
    (permitted,) = (int(line.split()[1], 16) for line in lines if line.startswith("CapPrm"))
    kernel.set_capabilities(permitted & ~(1 << SYS_ADMIN))
    if sys.argv[1] == "no-namespaces":
        refuse_namespaces()
    with CodeVerifier(sandbox=Sandbox(workers=2)) as verifier:
        prompt = Prompt("p", "", "code", {"asserts": ["assert f(1) == 2"]})
        verdicts = verifier([prompt] * len(PROGRAMS), list(PROGRAMS.values()))
        assert isinstance(verifier, CodeVerifier)
        found = dict(zip(PROGRAMS, [v.reward for v in verdicts], strict=True))
        print(json.dumps({"tier": verifier.sandbox.tier, "rewards": found}))


if __name__ == "__main__":
    main()
