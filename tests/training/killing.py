"""End a run at given moments and go on with it: python killing.py RUN.toml FOLDER SIGNAL SHARES...

A process that has everything imported forks one child per life of the run, so that a moment is a
moment of training and not of importing. SHARES are moments of a life as shares of the untouched
run, which is made first and left in FOLDER/whole; the other one is FOLDER/ended. The clock is the
run's own: lines of metrics, and the mean time between them for the part of a line; so a busy
machine changes nothing. SIGNAL is KILL,
INT, TERM, or TWICE (TERM and, at once, TERM again). Prints how each life ended.
"""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import torch

from bestofk.config import read, replaced
from bestofk.training.train import train

ENDS = {"KILL": [9], "INT": [2], "TERM": [15], "TWICE": [15, 15]}


def life(config, folder):
    """One child: create or resume, and train to the end. Exits as the verb does."""
    child = os.fork()
    if child:
        return child
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    try:
        there = (folder / "config.toml").exists()
        outcome = train(replaced(config, "run.dir", str(folder)), resume=there)
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
    """How a life ended that gets the signals after so many lines, and how long that took."""
    metrics = folder / "metrics.jsonl"
    before = written(metrics)
    child = life(config, folder)
    whole, part = divmod(target, 1)
    while written(metrics) < before + whole and not is_over(child):
        before = min(before, written(metrics))  # a resumed run drops what no checkpoint holds
        time.sleep(0.002)
    time.sleep(part * pace)
    asked = time.monotonic()
    for number in numbers:
        os.kill(child, number)
        time.sleep(0.02)
    return ended(child), time.monotonic() - asked


def main(recipe, folder, name, shares):
    torch.set_num_threads(1)
    config, folder = read(recipe), Path(folder)
    began = time.monotonic()
    assert ended(life(config, folder / "whole")) == 0
    length = time.monotonic() - began
    lines = written(folder / "whole" / "metrics.jsonl")
    ends, waits = [], []
    for share in map(float, shares):
        for _ in range(10):
            keep(folder / "ended", folder / "kept")
            moment = written(folder / "ended" / "metrics.jsonl") + share * lines
            end, wait = signalled(
                config, folder / "ended", ENDS[name], share * lines, length / lines
            )
            if end != 0 or moment > lines - 1:
                break
            keep(folder / "kept", folder / "ended")  # it was faster than this process: once more
        ends.append(end)
        waits.append(wait)
        if end == 0:
            break
    else:
        assert ended(life(config, folder / "ended")) == 0
    print(json.dumps({"seconds": length, "ends": ends, "waits": waits}))


if __name__ == "__main__":
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
