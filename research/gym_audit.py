"""Which of reasoning-gym's tasks can be trusted: the facts that decide the allow-list.

python research/gym_audit.py           prints the list
python research/gym_audit.py NAME…     prints why these are not on it
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import reasoning_gym

from bestofk.rewards.puzzles.gym_scorer import score

ENTRIES = 24
MANY = 400
"""Entries on which fixed answers are counted, where they are quickly made."""
CONSTANT_SHARE = {ENTRIES: 0.34, MANY: 0.25}
"""A task on which one fixed answer is right more often than this, by entries, is not allowed."""
CONSTANTS = ("Yes", "No", "True", "False", "0", "1", "2", "A", "B", "[]", "yes", "no", "-1")
CANARY = "setattr(__import__('sys'), 'bestofk_was_here', 1)"
_EXECUTES = re.compile(
    r"(?<![.\w])(?:eval|exec)\(|\b(?:parse_expr|sympify|parse_latex)\(|sympy\.parsing"
)
GARBAGE = (
    CANARY,
    f"1 + 0 * ({CANARY} or 1)",
    *("", " ", "garbage", "None", "{}", "()", "*", ".", "\x00", "nan", "(lambda: 1)()", "1/0"),
)


def faults(name: str) -> list[str]:
    """Why a task cannot be trusted; empty for one that can.

    Its scorer does not execute the answer (one that does can be made to say anything); its entries
    are the same twice and survive JSON; its own answer scores 1; neither garbage, nor the question,
    nor a hedge between two answers, nor "not" and the right one scores 1; no fixed answer is right
    too often; and its scorer raises on none of this.
    """
    return list(_faults(name))


def _faults(name: str) -> Iterator[str]:
    module = inspect.getmodule(reasoning_gym.factory.DATASETS[name][0])
    if module is None or _EXECUTES.search(inspect.getsource(module)):
        yield "its module can execute the answer"
        return
    try:
        entries, again = (_entries(name) for _ in range(2))
    except Exception as error:
        yield f"cannot be generated: {type(error).__name__}: {error}"
        return
    if entries != again:
        yield "not the same twice"
        return
    try:
        yield from _scoring_faults(name, entries)
    except Exception as error:
        yield f"the scorer raises {type(error).__name__}: {error}"
    if hasattr(sys, "bestofk_was_here"):
        del sys.bestofk_was_here
        yield "the scorer executes the answer"


def _entries(name: str, count: int = ENTRIES) -> list[dict[str, Any]]:
    dataset = reasoning_gym.create_dataset(name, seed=7, size=count)
    return [json.loads(json.dumps(dataset[i])) for i in range(count)]


def _scoring_faults(name: str, entries: list[dict[str, Any]]) -> Iterator[str]:
    golds = [entry["answer"] for entry in entries]
    if any(not isinstance(gold, str) or not gold.strip() for gold in golds):
        yield "an answer of its own is empty or no text"
        return
    for entry in entries:
        gold = entry["answer"]
        if score(name, {}, entry, gold.strip()) != 1.0:
            yield "an answer of its own does not score 1"
            return
        other = next((answer for answer in golds if answer != gold), "nothing")
        wrong = (*_hedges(gold.strip(), other.strip()), *_cut_short(entry))
        for answer in (*GARBAGE, *wrong, entry["question"]):
            if answer.strip() != gold.strip() and score(name, {}, entry, answer) >= 1.0:
                yield f"pays for {answer[:40]!r}"
                return
    began = time.process_time()
    _entries(name)
    if time.process_time() - began < 0.5:
        entries = _entries(name, MANY)
    common = [answer for answer, _ in Counter(e["answer"] for e in entries).most_common(3)]
    for constant in (*CONSTANTS, *common):
        hits = sum(score(name, {}, entry, constant) >= 1.0 for entry in entries)
        if hits > CONSTANT_SHARE[len(entries)] * len(entries):
            yield f"the constant answer {constant[:40]!r} is right {hits} times of {len(entries)}"
            return


def _hedges(gold: str, other: str) -> Iterator[str]:
    """Answers that say more than one thing, or take back what they say."""
    for between in (" or ", ", ", " and ", " ", "\n"):
        yield f"{gold}{between}{other}"
        yield f"{other}{between}{gold}"
    yield f"not {gold}"
    yield f"{gold}, but maybe 5 instead"
    yield f"{gold} # or else"


def _cut_short(entry: dict[str, Any]) -> Iterator[str]:
    """A long decimal with two places, unless the question asks for so few figures."""
    gold = entry["answer"].strip()
    if re.fullmatch(r"-?[0-9]+[.][0-9]{4,}", gold) and "3 significant" not in entry["question"]:
        short = gold[: gold.index(".") + 3]
        if float(short) != float(gold):
            yield short


def digests(names: Sequence[str]) -> dict[str, str]:
    """A digest of each task's entries, to be compared between processes."""
    return {name: hashlib.sha256(json.dumps(_entries(name)).encode()).hexdigest() for name in names}


def moving(names: Sequence[str]) -> set[str]:
    """Tasks whose entries differ between processes: a resumed run would see other problems."""
    code = "import json, sys; sys.path.insert(0, sys.argv[1]); from gym_audit import digests\n"
    code += "made = digests(sys.argv[3:]); open(sys.argv[2], 'w').write(json.dumps(made))"
    by_process = []
    for hash_seed in ("1", "2"):
        with tempfile.NamedTemporaryFile("r") as answer:
            subprocess.run(
                [sys.executable, "-c", code, os.path.dirname(__file__), answer.name, *names],
                env={**os.environ, "PYTHONHASHSEED": hash_seed},
                stdout=subprocess.DEVNULL,  # some generators print
                check=True,
            )
            by_process.append(json.load(answer))
    return {name for name in names if by_process[0][name] != by_process[1][name]}


def derive() -> list[str]:
    """The tasks of this reasoning-gym that can be trusted."""
    sound = [name for name in sorted(reasoning_gym.factory.DATASETS) if not faults(name)]
    return sorted(set(sound) - moving(sound))


if __name__ == "__main__":
    for line in [f"{name}: {why}" for name in sys.argv[1:] for why in faults(name)] or derive():
        print(line)
