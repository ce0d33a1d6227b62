"""End runs at given moments and go on with them: python killing.py [[RUN.toml, FOLDER, SIGNAL,
SHARES], ...], as JSON.

A process that has everything imported forks one child per life of a run, so that a moment is a
moment of training and not of importing. SHARES are moments of a life as shares of the untouched
run, which is made first and left in FOLDER/whole; the other one is FOLDER/ended. The clock is the
run's own: lines of metrics, and the mean time between them for the part of a line; so a busy
machine changes nothing. SIGNAL is KILL, INT, TERM, or TWICE (TERM and, at once, TERM again); or IN,
and each of SHARES is PHASE:CALL, where the life kills itself at that call. Prints how each life of
each run ended.
"""

import itertools
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

from bestofk.config import merged, read
from bestofk.learning import Learner
from bestofk.runs import Run
from bestofk.training import train as training
from bestofk.training.session import Session

ENDS = {"KILL": [9], "INT": [2], "TERM": [15], "TWICE": [15, 15]}


PHASES = {
    "sample": (Session, "sample"),
    "judge": (Session, "judge"),
    "drawn": (training, "for_later"),
    "learn": (training, "learn"),
    "step": (Learner, "step"),
    "record": (Session, "record"),
    "save": (Run, "save"),
    "saved": (Run, "prune"),
}


def die_in(phase, call):
    """This process kills itself when it is called that often, before anything of that call."""
    place, name = PHASES[phase]
    real, calls = getattr(place, name), itertools.count(1)

    def once_too_often(*args, **named):
        if next(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **named)

    setattr(place, name, once_too_often)


def life(config, folder, phase=None):
    """One child: create or resume, and train to the end. Exits as the verb does."""
    child = os.fork()
    if child:
        return child
    if phase:
        die_in(phase[0], int(phase[1]))
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    try:
        there = (folder / "config.toml").exists()
        outcome = training.train(merged(config, {"run.dir": str(folder)}), resume=there)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        os._exit(1)
    os._exit(128 + outcome.signal if outcome.signal else 0)


def written(metrics):
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def is_over(child):
    """Whether the child has ended; it stays to be waited for."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def ended(child):
    """0 done, -n died of signal n, 128 + n left because of signal n."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def keep(folder, copy):
    """A copy of the folder as it is, or of none."""
    shutil.rmtree(copy, ignore_errors=True)
    if folder.exists():
        shutil.copytree(folder, copy)


def signalled(config, folder, numbers, target, pace):
    """How a life ended that gets the signals after so many lines."""
    metrics = folder / "metrics.jsonl"
    before = written(metrics)
    child = life(config, folder)
    whole, part = divmod(target, 1)
    while written(metrics) < before + whole and not is_over(child):
        before = min(before, written(metrics))  # a resumed run drops what no checkpoint holds
        time.sleep(0.002)
    time.sleep(part * pace)
    for number in numbers:
        os.kill(child, number)
        time.sleep(0.02)
    return ended(child)


def end(recipe, folder, name, shares):
    config, folder = read(recipe), Path(folder)
    began = time.monotonic()
    assert ended(life(config, folder / "whole")) == 0
    length = time.monotonic() - began
    lines = written(folder / "whole" / "metrics.jsonl")
    ends = []
    if name == "IN":
        ends = [ended(life(config, folder / "ended", share.split(":"))) for share in shares]
        shares = []
    for share in shares:
        for _ in range(10):
            keep(folder / "ended", folder / "kept")
            moment = written(folder / "ended" / "metrics.jsonl") + share * lines
            how = signalled(config, folder / "ended", ENDS[name], share * lines, length / lines)
            if how != 0 or moment > lines - 1:
                break
            keep(folder / "kept", folder / "ended")  # it was faster than this process: once more
        ends.append(how)
        if how == 0:
            break
    else:
        assert ended(life(config, folder / "ended")) == 0
    return ends


if __name__ == "__main__":
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    print(json.dumps([end(*each) for each in json.loads(sys.argv[1])]))
