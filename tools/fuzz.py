"""Feed mutated inputs to everything that reads what others wrote: python tools/fuzz.py [TARGET ...]

A target is a function of bytes. It returns what kind of answer came (any text), and raises when an
answer breaks the rule in its docstring. Inputs that give a new kind of answer are mutated further.
An input that fails is shortened and added to tests/corpus/TARGET.txt, one bytes literal a line,
where the tests replay it from then on.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parents[1] / "tests" / "corpus"
LONGEST = 1 << 14
"""Bytes of one input."""
SLOWEST = 5.0
"""CPU seconds that one input may take: every reader here is to work in time linear in its input."""

Target = Callable[[bytes], str]


def _kind(error: BaseException) -> str:
    """The kind of an error: its text without numbers and quotations."""
    return type(error).__name__ + re.sub(r"\d+|'.*'|\".*\"|b'.*", "#", str(error))[:60]


def codec(data: bytes) -> str:
    """Bytes are a value that encodes and decodes to the same value, or a CodecError."""
    from bestofk.sandbox.guest.codec import CodecError, decode, encode

    try:
        value = decode(data)
    except CodecError as error:
        return _kind(error)
    again = encode(value)  # an iterator is spent now
    if "iterator" not in repr(value):
        assert repr(decode(again)) == repr(value)
    return type(value).__name__


def frames(data: bytes) -> str:
    """A stream is frames, then its end or a CodecError; no frame is longer than allowed."""
    from bestofk.sandbox.guest.codec import CodecError
    from bestofk.sandbox.guest.wire import Frames

    read, write = os.pipe()
    try:
        os.write(write, data)
        os.close(write)
        stream, count = Frames(read, 1000, lambda: None), 0
        while True:
            try:
                _, _, payload = stream.next()
            except (EOFError, CodecError) as error:
                return f"{min(count, 5)} frames, {type(error).__name__}"
            assert len(payload) <= 1000
            count += 1
    finally:
        os.close(read)


def packets(data: bytes) -> str:
    """A packet is a JSON value, or a CodecError."""
    from bestofk.sandbox.guest.codec import CodecError
    from bestofk.sandbox.guest.wire import unpack

    try:
        return type(unpack(data)).__name__
    except CodecError as error:
        return _kind(error)


def programs(data: bytes) -> str:
    """Any completion has a program, maybe an empty one, which does not depend on what is asked."""
    from bestofk.rewards.code.extract_program import assembled, extract_code

    text = data.decode("utf-8", "surrogateescape")
    code = extract_code(text, {"f"})
    assert isinstance(code, str)
    assert isinstance(assembled("import math\n", code), str)
    return f"{bool(code)} {code.count(chr(10)) > 3} {'def f' in code} {code == text}"


def specs(data: bytes) -> str:
    """Any JSON object is a code spec whose tests can be cut, or a ValueError or SyntaxError."""
    from bestofk.rewards.code.prepared_tests import statements_of
    from bestofk.rewards.code.spec import checked_spec

    try:
        spec = json.loads(data)
    except (ValueError, RecursionError):
        return "no JSON"
    if not isinstance(spec, dict):
        return "no object"
    try:
        form, given = checked_spec(spec)
        if form in ("asserts", "check"):
            return f"{form} {min(statements_of(form, given).total, 3)}"
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        return _kind(error)
    return form


def maths(data: bytes) -> str:
    """Any completion is right, wrong, or left to algebra, and right for one of two numbers only."""
    from bestofk.rewards.maths.judge_maths import judge_text

    text = data.decode("utf-8", "surrogateescape")
    kinds, right = [], []
    for gold in ("7919", "7927", r"\frac{x^2}{7919}", "[7919, 7927)"):
        verdict = judge_text(gold, text)
        if isinstance(verdict, tuple):
            kinds.append("algebra")
            continue
        assert verdict.status in ("correct", "incorrect", "unparsed"), verdict
        right += [gold] * (verdict.reward == 1.0)
        kinds.append(f"{verdict.status} {verdict.detail[:20]}")
    assert len(right) <= 1, right
    return " ".join(kinds)


def puzzles(data: bytes) -> str:
    """Every puzzle has a verdict on any completion, with a reward in [0, 1]."""
    from bestofk.rewards import verifier
    from bestofk.types import Prompt

    text = data.decode("utf-8", "surrogateescape")
    kinds = []
    for name, spec in _PUZZLES.items():
        verdict = verifier(name)([Prompt("p", "", name, spec)], [text])[0]
        assert verdict.status != "unscored", (name, verdict)
        assert 0.0 <= verdict.reward <= 1.0
        kinds.append(verdict.status[:4] + re.sub(r"\d+|'.*'", "#", verdict.detail)[:12])
    return " ".join(kinds)


_PUZZLES: dict[str, dict[str, object]] = {
    "countdown": {"numbers": [3, 8, 2], "target": 24, "operators": "+-*/"},
    "maze": {"grid": "S.#\n..E\n###"},
    "exact": {"expected": "yes"},
    "format": {},
}


def _file(name: str, data: bytes) -> Path:
    """A file of this process's own folder with this content."""
    if not _FOLDER:
        _FOLDER.append(tempfile.TemporaryDirectory(prefix="fuzz"))
    path = Path(_FOLDER[0].name) / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(data)
    return path


def _names(error: Exception, file: str) -> None:
    """An error is of use where it says which file is meant."""
    if file not in str(error):
        raise AssertionError(f"the error does not name {file}") from error


_FOLDER: list[tempfile.TemporaryDirectory[str]] = []


def _chosen(data: bytes, names: tuple[str, ...]) -> tuple[str, bytes]:
    """One of the names, by the first byte, and the rest."""
    return names[(data[0] if data else 0) % len(names)], data[1:]


def samples(data: bytes) -> str:
    """A file of samples of any format is rewards by problem, or a BadFile that names the file."""
    from bestofk.samples import BadFile, read

    kind, content = _chosen(data, _SAMPLE_FILES)
    file = _file(f"samples{kind}", content)
    try:
        run = read(file)
    except BadFile as error:
        _names(error, file.name)
        return kind + _kind(error)
    assert len(run.problems) == len(run.live)
    assert 0 <= run.unscored <= run.sizes.sum()
    return f"{kind} {run.metadata['format']} {min(len(run.problems), 3)} {min(run.unscored, 2)}"


_SAMPLE_FILES = (".jsonl", ".json", ".csv", ".tsv", ".jsonl.gz", ".parquet", ".eval", ".jsonl.zst")


def rows(data: bytes) -> str:
    """A data file is rows of fields, or a ValueError."""
    from bestofk.tasks.data_rows import read

    kind, content = _chosen(data, (".jsonl", ".json", ".csv", ".jsonl.gz", ".parquet"))
    try:
        found = read(_file(f"rows{kind}", content))
    except ValueError as error:
        return kind + _kind(error)
    assert all(isinstance(row, dict) for row in found)
    return f"{kind} {min(len(found), 3)} {min(len(found[0]), 3) if found else 0}"


def run_folder(data: bytes) -> str:
    """A run's folder with one changed file is read, or is a ValueError or OSError that names it."""
    import shutil

    from bestofk import runs

    name, content = _chosen(data, _RUN_FILES)
    folder = _file("run/config.toml", b"").parent
    shutil.rmtree(folder)
    state = b'{"step": 2, "state": {"step": 2, "validated": 2}}'
    for known, text in (
        ("metrics.jsonl", b'{"kind": "train", "step": 1}\n{"kind": "train", "step": 2}\n'),
        ("samples/000002.jsonl", b'{"step": 2, "reward": 1.0}\n'),
        ("checkpoints/step-000002/state.json", state),
    ):
        _file(f"run/{known}", text)
    listing = {"state.json": [len(state), runs.digest(_file("state.json", state))]}
    _file(f"run/checkpoints/step-000002/{runs.MANIFEST}", json.dumps(listing).encode())
    _file(f"run/{name}", content)
    told = []
    for reader in (runs.read_metrics, lambda path: list(runs.read_samples(path)), _restored):
        try:
            told.append(str(min(len(reader(folder)), 3)))
        except (ValueError, OSError) as error:
            _names(error, "run")
            told.append(_kind(error)[:30])
    return f"{name} {told}"


def _restored(folder: Path) -> str:
    from bestofk import runs

    found = runs.Run(folder).restore()
    return "" if found is None else "x" * found.step


_RUN_FILES = ("metrics.jsonl", "samples/000002.jsonl", "checkpoints/step-000002/state.json",
              "checkpoints/step-000002/manifest.json")  # fmt: skip


def recipes(data: bytes) -> str:
    """A recipe is a config that reads back from its own text, or a ValueError with the file."""
    from bestofk.config import read, to_toml
    from bestofk.training.checks import cautions, check

    file = _file("recipe.toml", data)
    try:
        config = read(file)
    except ValueError as error:
        _names(error, "recipe.toml")
        return _kind(error).replace(str(file), "")
    again = read(_file("again.toml", to_toml(config).encode()))
    assert _settings(again) == _settings(config)
    try:
        return f"good {len(cautions(config, check(config)))}"
    except ValueError as error:
        return "checked " + _kind(error)


def _settings(config: Any) -> str:
    """A config as text: NaN equals NaN, and the order of options, which TOML changes, is lost."""
    return json.dumps(config.model_dump(), sort_keys=True, default=repr)


def flags(data: bytes) -> str:
    """A command line of `train` is a config or a ValueError."""
    from bestofk.cli.train_command import split
    from bestofk.config import Config, merged

    words = data.decode("utf-8", "surrogateescape").split("\n")
    try:
        config = merged(Config(), split(words)[1])
    except ValueError as error:
        return _kind(error)
    assert isinstance(config, Config)
    return "config"


TARGETS: dict[str, Target] = {
    "codec": codec,
    "frames": frames,
    "packets": packets,
    "programs": programs,
    "specs": specs,
    "maths": maths,
    "puzzles": puzzles,
    "samples": samples,
    "rows": rows,
    "run_folder": run_folder,
    "recipes": recipes,
    "flags": flags,
}
"""What can be fuzzed: a name, which is also that of its corpus, and a function of bytes."""


def seeds(target: str) -> list[bytes]:
    """The inputs kept for a target."""
    lines = (CORPUS / f"{target}.txt").read_text(encoding="ascii").splitlines()
    return [ast.literal_eval(line) for line in lines if line]


def mutated(rng: random.Random, pool: list[bytes]) -> bytes:
    """One of the pool, changed in one to four ways."""
    data = bytearray(rng.choice(pool))
    for _ in range(rng.randint(1, 4)):
        at, end = sorted((rng.randint(0, len(data)), rng.randint(0, len(data))))
        other = rng.choice(pool)
        cut = rng.randint(0, len(other))
        way = rng.randrange(7)
        if way == 0:
            data[at:at] = bytes(rng.choices(range(256), k=rng.randint(1, 8)))
        elif way == 1:
            del data[at:end]
        elif way == 2 and data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        elif way == 3:
            data[at:at] = other[cut : cut + rng.randint(1, 40)]
        elif way == 4:
            data[at:] = other[cut:]
        elif way == 5:
            data[at:at] = data[at:end] * rng.choice((1, 2, 50))
        else:
            data[at : at + 4] = rng.choice(_NUMBERS)
    return bytes(data[:LONGEST])


_NUMBERS = [number.to_bytes(4, "little") for number in (0, 1, 64, 65, 1000, 1 << 31, (1 << 32) - 1)]


def failure(target: Target, data: bytes) -> str:
    """What is wrong with the target's answer; empty where nothing is."""
    started = time.process_time()
    try:
        target(data)
    except (Exception, SystemExit):
        return traceback.format_exc()
    spent = time.process_time() - started
    return f"it took {spent:.1f} CPU seconds" if spent > SLOWEST else ""


def shortened(target: Target, data: bytes, tries: int = 500) -> bytes:
    """A shorter input that fails too: pieces are left out as long as that is so."""
    size = max(1, len(data) // 2)
    while size and tries > 0:
        for at in range(0, len(data), size):
            shorter = data[:at] + data[at + size :]
            tries -= 1
            if failure(target, shorter):
                data = shorter
                break
        else:
            size //= 2
    return data


def fuzz(
    target: Target, pool: list[bytes], seconds: float, seed: int = 0, least: int = 0
) -> tuple[int, int, bytes | None]:
    """Inputs tried, kinds of answers seen, and an input that fails (None: there is none).

    `least`: inputs that are tried however long that takes.
    """
    rng, kinds, tried = random.Random(seed), set[str](), 0
    pool = list(pool)
    end = time.monotonic() + seconds
    while time.monotonic() < end or tried < least:
        data = pool[tried] if tried < len(pool) else mutated(rng, pool)
        tried += 1
        started = time.process_time()
        try:
            kind = target(data)
        except (Exception, SystemExit):
            return tried, len(kinds), shortened(target, data)
        if time.process_time() - started > SLOWEST:
            return tried, len(kinds), data
        if kind not in kinds and len(kinds) < 5000:
            kinds.add(kind)
            pool.append(data)
    return tried, len(kinds), None


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--seconds", type=float, default=600.0, help="for each target")
    parser.add_argument("--seed", type=int, default=0, help="of the mutations")
    options = parser.parse_args(argv)
    unknown = [name for name in options.targets if name not in TARGETS]
    if unknown:
        parser.error(f"unknown target {unknown[0]!r}; have {', '.join(TARGETS)}")
    failed = 0
    for name in options.targets or TARGETS:
        tried, kinds, bad = fuzz(TARGETS[name], seeds(name), options.seconds, options.seed)
        print(f"{name:<10} {tried:>9} inputs, {kinds} kinds of answers, {options.seconds:g} s")
        if bad is not None:
            failed += 1
            print(f"{bad!r}\n{failure(TARGETS[name], bad)}")
            with (CORPUS / f"{name}.txt").open("a", encoding="ascii") as corpus:
                corpus.write(f"{bad!r}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
