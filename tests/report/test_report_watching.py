"""`bestofk report --watch`: a page on loopback that follows a run while it grows."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from bestofk.reports.watching import WatchedPage, server_of


def get(url: str, host: str | None = None) -> tuple[int, str]:
    request = urllib.request.Request(url, headers={"Host": host} if host else {})
    try:
        with urllib.request.urlopen(request, timeout=900) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


def write_step(folder: Path, step: int) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(
            json.dumps(
                {"kind": "train", "step": step, "reward": 0.1 * step, "seconds": {"learn": 60.0}}
            )
            + "\n"
        )


def test_the_page_is_made_again_exactly_when_a_file_has_changed(tmp_path: Path) -> None:
    made: list[int] = []

    def make() -> str:
        if not (tmp_path / "metrics.jsonl").exists():
            raise ValueError("an empty run <b>")
        made.append(1)
        return f"page {len(made)}"

    page = WatchedPage([tmp_path], make)
    assert page.refresh()
    assert "an empty run &lt;b&gt;" in page.text
    write_step(tmp_path, 1)
    assert page.refresh()
    assert page.text == "page 1"
    first = page.stamp
    assert not page.refresh()
    assert (page.text, page.stamp) == ("page 1", first)
    write_step(tmp_path, 2)
    assert page.refresh()
    assert page.text == "page 2"
    assert page.stamp != first


def test_an_exception_is_shown_and_the_run_followed_on(tmp_path: Path) -> None:
    pages: list[str | Exception] = [KeyError("<half>"), "whole"]

    def make() -> str:
        if isinstance(made := pages.pop(0), Exception):
            raise made
        return made

    page = WatchedPage([tmp_path], make)
    page.refresh()
    assert "KeyError: &#x27;&lt;half&gt;&#x27;" in page.text
    write_step(tmp_path, 1)
    assert page.refresh()
    assert page.text == "whole"


def test_only_this_machine_is_answered_and_only_two_paths_exist(tmp_path: Path) -> None:
    page = WatchedPage([tmp_path], lambda: "hello")
    page.refresh()
    with server_of(page, 0) as server:
        host, port = server.server_address[:2]
        assert host == "127.0.0.1"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{port}"
        assert len(page.token) > 20
        assert get(f"{url}/{page.token}/") == (200, "hello")
        assert get(f"{url}/{page.token}/stamp") == (200, page.stamp)
        for path in ("", "stamp", "../etc/passwd", f"{page.token}x/", f"{page.token}/../"):
            assert get(f"{url}/{path}")[0] == 404
        assert get(f"{url}/{page.token}/", host="evil.example:80")[0] == 404
        assert get(f"{url}/{page.token}/", host="localhost")[0] == 200  # as browsers do at port 80
        for bad in (int(port), 70_000, -1):
            with pytest.raises(OSError, match=f"127.0.0.1:{bad} .*choose another --port from 1024"):
                server_of(page, bad)
        server.shutdown()


def test_the_command_follows_a_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "bestofk", "report", "--watch", str(run), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[0]
        deadline = time.monotonic() + 900
        while "no such file or folder" not in get(url)[1] and time.monotonic() < deadline:
            time.sleep(0.2)  # the folder is not there yet
        run.mkdir()
        (run / "config.toml").write_text('objective = "max@8"\n[run]\nseed = 0\nsteps = 5\n')
        write_step(run, 1)
        while "Training" not in (text := get(url)[1]) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert '"step":[1]' in text
        assert "connect-src 'self'" in text
        before = get(url + "stamp")[1]
        write_step(run, 2)
        while get(url + "stamp")[1] == before and time.monotonic() < deadline:
            time.sleep(0.2)
        assert '"step":[1,2]' in get(url)[1]
        assert "max@8 · step 2 of 5 · about 3 min left" in get(url)[1]
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=900)
    assert process.returncode == 130
    assert [file.name for file in tmp_path.iterdir()] == ["run"]
