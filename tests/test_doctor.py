"""`bestofk doctor` says what is so, for this user."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from bestofk.cli import doctor_command as doctor
from bestofk.cli import main
from bestofk.sandbox import Sandbox


def test_doctor_reports_the_tier_that_a_sandbox_gets(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with Sandbox(workers=1) as sandbox:
            best = sandbox.tier
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["tier"] == best
    assert facts["tiers"][str(best)] == "offered"
    assert set(facts["tiers"]) == {"3", "2", "1"}
    assert facts["extras"]["train"]["torch"]


def test_doctor_fails_when_the_tier_asked_for_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = {3: "needs root", 2: "unshare: Operation not permitted", 1: ""}
    monkeypatch.setattr(doctor, "sandbox_tiers", lambda: refused)
    assert doctor.main(["--tier", "2"]) == 1
    page = capsys.readouterr().out
    assert "tier 1, by attacking it" in page
    assert "unshare: Operation not permitted" in page
    assert "user.max_user_namespaces" in page
    assert doctor.main(["--tier", "1"]) == 0


def test_an_ordinary_user_is_told_about_tier_3() -> None:
    script = Path(__file__).parent / "sandbox" / "as_user.py"
    command = [sys.executable, str(script), "23456", "-m", "bestofk", "doctor", "--json"]
    import os

    if os.geteuid() != 0:
        command = [sys.executable, "-m", "bestofk", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode == 77:
        pytest.skip(done.stderr)
    facts = json.loads(done.stdout)
    assert facts["user"] != 0
    assert "needs root" in facts["tiers"]["3"]
    assert facts["tier"] in (1, 2)


def test_doctor_names_packages_that_programs_import(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "sandbox_tiers", lambda: {3: "", 2: "", 1: ""})
    monkeypatch.setitem(doctor.PROGRAM_PACKAGES, "nobody_has_this", "a reference")
    assert doctor.main([]) == 0
    page = capsys.readouterr().out
    assert "sortedcontainers" in page
    assert "missing: pip install nobody_has_this  (a reference)" in page


def test_doctor_says_which_adapters_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    import trl

    assert doctor.host_state("trl") == f"{trl.__version__}: bestofk.adapters.trl"
    monkeypatch.setattr(doctor, "version_of", lambda name: "1.9.3")
    assert doctor.host_state("trl").startswith("too old: 1.9.3, bestofk.adapters.trl needs 1.10")
    oldest = ".".join(map(str, doctor.HOSTS["trl"][2]))
    root = Path(__file__).parents[1]
    assert f'trl = ["trl>={oldest}"]' in (root / "pyproject.toml").read_text()
    assert f"TRL ≥ {oldest};" in (root / "docs" / "adapters" / "trl.md").read_text()
    monkeypatch.setitem(doctor.HOSTS, "nobody_has_this", ("N", "bestofk.adapters.n", (1,)))
    assert doctor.host_state("nobody_has_this") == "not installed"


@pytest.mark.parametrize("host", list(doctor.HOSTS))
def test_every_host_has_a_page_and_a_module(host: str) -> None:
    name, ours, _ = doctor.HOSTS[host]
    folder = Path(__file__).parents[1] / "docs" / "adapters"
    pages = [page.read_text(encoding="utf-8") for page in folder.glob("*.md")]
    assert any(re.search(rf"^##? {name}\b", page, re.MULTILINE) for page in pages)
    module = Path(doctor.__file__).parents[1].joinpath(*ours.split(".")[1:])
    assert module.with_suffix(".py").exists() or (module / "__init__.py").exists()
