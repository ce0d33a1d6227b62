"""The verb: what it prints, what it writes, what it refuses, and what an interrupt leaves."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bestofk.cli import VERBS, main
from bestofk.cli import demo_command as verb
from bestofk.demo import Settings, experiment, rows, sentence
from bestofk.storage import write_atomically

BRIEF = ["demo", "--steps", "3", "--worlds", "2"]


def bestofk(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bestofk", *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        encoding="utf-8",
    )


def test_a_pipe_gets_the_plain_table_the_sentence_and_the_place(tmp_path: Path) -> None:
    done = bestofk(*BRIEF, "--seed", "5", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    results = experiment(Settings(seed=5, steps=3, worlds=2))
    lines = [re.split(r"\s{2,}", line.strip()) for line in done.stdout.splitlines()]
    for row in rows(results):
        assert [row.label, *row.cells] in lines
    assert list(results.names) in lines
    assert sentence(results) in " ".join(done.stdout.split())
    assert "n = 16" in done.stdout
    assert "seed 5" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["demo.html"]
    text = (tmp_path / "demo.html").read_text(encoding="utf-8")
    for row in rows(results):
        for cell in row.cells:
            assert cell in text


def test_a_terminal_without_the_characters_still_gets_its_table(tmp_path: Path) -> None:
    done = bestofk(*BRIEF, cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "pass@64" in done.stdout


def test_out_goes_where_it_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a page.html"
    out.write_text("old")
    assert main([*BRIEF, "--out", str(out)]) == 0
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert out.stat().st_mode & 0o777 == 0o666 & ~_umask()
    assert "a page.html" in capsys.readouterr().out.replace("\n", "")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--steps", "1000000"], "--steps takes at most 10000, got 1000000"),
        (["--worlds", "1"], "--worlds takes at least 2, got 1"),
        (["--out", "."], "it is a folder; name a file in it"),
        (["--out", "missing/page.html"], "there is no folder missing; create it"),
        (["--out", os.devnull], "is not a regular file"),
    ],
)
def test_silly_values_are_refused_before_any_work(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(verb, "experiment", lambda *_: pytest.fail("it worked before it checked"))
    assert main(["demo", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("bestofk demo: ")
    assert said in shown.err
    assert shown.out == ""
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_the_old_page_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "demo.html"
    page.write_text("the page of before")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(verb, "experiment", lambda *_: signal.raise_signal(signal.SIGINT))
    assert main(["demo"]) == 130
    assert capsys.readouterr().err.strip() == "interrupted"
    assert page.read_text() == "the page of before"
    assert list(tmp_path.iterdir()) == [page]


@pytest.mark.parametrize("moment", ["fsync", "replace"])
@pytest.mark.parametrize("why", [KeyboardInterrupt, OSError("disk full")])
def test_a_write_that_fails_midway_leaves_the_old_file_whole(
    moment: str, why: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "demo.html"
    page.write_text("the page of before")

    def fail(*_: object) -> None:
        raise why

    monkeypatch.setattr(os, moment, fail)
    with pytest.raises((KeyboardInterrupt, OSError)):
        write_atomically(page, "new" * 100_000)
    assert page.read_text() == "the page of before"
    assert list(tmp_path.iterdir()) == [page]


def test_a_link_is_written_through(tmp_path: Path) -> None:
    page, link = tmp_path / "page.html", tmp_path / "link.html"
    page.write_text("old")
    link.symlink_to(page)
    write_atomically(link, "new")
    assert link.is_symlink()
    assert page.read_text() == "new"


def test_only_commands_that_exist_are_recommended() -> None:
    commands = [command.split() for command, _ in verb.NEXT_STEPS]
    verbs = [words[1] for words in commands if words[0] == "bestofk"]
    assert "demo" in verbs
    assert set(verbs) <= set(VERBS)
