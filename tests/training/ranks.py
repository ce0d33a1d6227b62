"""Runs of several processes, forked from one that has everything imported: python ranks.py WHAT ...

    lives RUN.toml FOLDER PLAN   runs in lives: {"name": [[processes, sharded, steps], ...], ...}
    dies RUN.toml FOLDER         two processes, one is killed; how the other ends

No launcher watches over them: what ends the survivor is our own.
"""

import faulthandler
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

if sys.argv[-1] != "gpu":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # "auto" is the CPU here, wherever this runs

import torch

from bestofk.config import read, replaced
from bestofk.training.train import train


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(config, size, resume, log):
    """The processes of one run; each writes what it says to FOLDER/log.RANK."""
    children, port = [], str(free_port())
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
            os.environ.update(
                RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size),
                LOCAL_WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
            )  # fmt: skip
        try:
            train(config, resume=resume)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
        os._exit(0)
    return children


def ends(children):
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def lives(config, folder, plan):
    """Each run starts in its first life and is resumed in the others, up to so many steps."""
    found: dict[str, list[list[int]]] = {}
    for name, lives in json.loads(plan).items():
        own = replaced(config, "run.dir", str(folder / name))
        found[name] = []
        for number, (size, sharded, steps) in enumerate(lives):
            own = replaced(replaced(own, "model.options.fsdp", sharded), "run.steps", steps)
            log = folder / f"{name}-{number}.log"
            found[name].append(ends(start(own, size, number > 0, log)))
    return found


def dies(config, folder):
    children = start(config, 2, False, folder / "log")
    metrics = Path(config.run.dir) / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_text().count("\n") >= 2):
        time.sleep(0.05)
    os.kill(children[1], signal.SIGKILL)
    return {"ends": ends(children)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    run = lives if sys.argv[1] == "lives" else dies
    more = [word for word in sys.argv[4:] if word != "gpu"]
    told = run(read(sys.argv[2]), Path(sys.argv[3]), *more)
    print(json.dumps(told))
