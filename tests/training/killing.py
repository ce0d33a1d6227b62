"""Runs that end themselves and are resumed: python killing.py [[RUN.toml, FOLDER, MOMENTS], ...],
as JSON.

This process makes the untouched run, FOLDER/whole, and forks one child per life of the other one,
FOLDER/ended. Each of MOMENTS is PHASE:CALL:SIGNAL: the life sends itself that signal at that call,
before anything of the call. SIGNAL is KILL, INT, TERM, or TWICE (TERM and, at once, TERM again).
After its moments the run is resumed to the end. Prints how each life of each run ended.
"""

import contextlib
import itertools
import json
import os
import signal
import sys
from pathlib import Path

if __name__ == "__main__":  # pytest imports every file of tests
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a process that used a device cannot be forked

from bestofk.config import merged, read
from bestofk.environments.conversation import OpenConversation
from bestofk.learning import Learner
from bestofk.runs import Checkpoints, Run
from bestofk.training import train as training
from bestofk.training.resolve import resolve
from bestofk.training.rollouts import Rollouts
from bestofk.training.session import Session

ENDS = {"KILL": [9], "INT": [2], "TERM": [15], "TWICE": [15, 15]}


PHASES = {
    "sample": (Rollouts, "sample"),
    "reply": (OpenConversation, "hear"),
    "judge": (Rollouts, "judge"),
    "drawn": (training, "for_later"),
    "learn": (training, "learn"),
    "step": (Learner, "step"),
    "record": (Session, "record"),
    "save": (Run, "save"),
    "saved": (Checkpoints, "prune"),
}


def end_in(phase, call, how):
    """This process gets the signals when it is called that often, before anything of that call."""
    place, name = PHASES[phase]
    real, calls = getattr(place, name), itertools.count(1)

    def once_too_often(*args, **named):
        if next(calls) == int(call):
            for number in ENDS[how]:
                os.kill(os.getpid(), number)
        return real(*args, **named)

    setattr(place, name, once_too_often)


def train(config, folder):
    """Create or resume a run and train to the end, or to a signal."""
    there = (folder / "config.toml").exists()
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
        return training.train(resolve(merged(config, {"run.dir": str(folder)}), resume=there))


def life(config, folder, moment):
    """How a child ended: -n died of signal n, 128 + n left because of it, as the verb does."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    end_in(*moment.split(":"))
    try:
        outcome = train(config, folder)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        os._exit(1)
    os._exit(128 + outcome.signal if outcome.signal else 0)


def end(recipe, folder, moments):
    config, folder = read(recipe), Path(folder)
    assert train(config, folder / "whole").signal is None
    ends = [life(config, folder / "ended", moment) for moment in moments]
    assert train(config, folder / "ended").signal is None
    return ends


if __name__ == "__main__":
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    print(json.dumps([end(*each) for each in json.loads(sys.argv[1])]))
