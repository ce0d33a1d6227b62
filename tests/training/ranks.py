"""Runs of several processes, forked from one that has everything imported:

    python ranks.py RUN.toml FOLDER PLAN

PLAN has runs in lives, {"name": [[processes, sharded, steps], ...], ...}. A run without lives has
two processes, of which one is killed: no launcher watches over them, so what ends the survivor is
our own. Prints how the processes of each life ended.
"""

import faulthandler
import json
import os
import signal
import sys
import time
from pathlib import Path

if __name__ == "__main__" and sys.argv[-1] != "gpu":  # pytest imports every file of tests
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # "auto" is the CPU here, wherever this runs


from bestofk.config import merged, read
from bestofk.training.resolve import resolve
from bestofk.training.train import train
from rendezvous import as_rank, meeting_place


def start(config, size, resume, log):
    """The processes of one run, and where they meet; each writes what it says to log.RANK."""
    children = []
    store, place = meeting_place()
    for rank in range(size):
        child = os.fork()
        if child:
            children.append(child)
            continue
        said = os.open(f"{log}.{rank}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(said, 1)
        os.dup2(said, 2)
        faulthandler.dump_traceback_later(900, exit=True)  # a hang ends, and says where
        if size > 1:
            as_rank(rank, size, place)
        try:
            train(resolve(config, resume=resume))
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
        os._exit(0)
    return children, store


def ends(started):
    children, _ = started
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def lives(config, folder, plan):
    """Each run starts in its first life and is resumed in the others, up to so many steps."""
    found: dict[str, list[list[int]]] = {}
    for name, lives in json.loads(plan).items():
        own = merged(config, {"run.dir": str(folder / name)})
        found[name] = [] if lives else [dies(own, folder / f"{name}.log")]
        for number, (size, sharded, steps) in enumerate(lives):
            own = merged(own, {"model.advanced.fsdp": sharded, "run.steps": steps})
            log = folder / f"{name}-{number}.log"
            found[name].append(ends(start(own, size, number > 0, log)))
    return found


def dies(config, log):
    config = merged(config, {"run.steps": 100_000, "evaluation.every": 0})
    children, store = start(config, 2, False, log)
    metrics = Path(config.run.dir) / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_text().count("\n") >= 2):
        time.sleep(0.05)
    os.kill(children[1], signal.SIGKILL)
    return ends((children, store))


if __name__ == "__main__":
    print(json.dumps(lives(read(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])))
