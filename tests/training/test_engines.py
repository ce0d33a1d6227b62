"""Which samplers a config may name, before anything is loaded."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from bestofk.config import Config, from_dict
from bestofk.training.checks import check, check_installed
from bestofk.training.cost import dry_run


def vllm(**options: Any) -> dict[str, Any]:
    return {"engine": "vllm", "engine_options": options}


def sampling(**values: Any) -> Config:
    return from_dict(Config, {"sampling": values})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"engine_options": {"server": "http://127.0.0.1:8000"}}, "server is for sampling.engine"),
        ({"engine_options": {"max_model_len": 9}}, "unknown key .*max_model_len"),
        ({"engine_options": {"agreement": 0.0}}, "above 0, got 0"),
        (vllm(server="http://10.1.1.1:8000"), "runs on this machine"),
        (vllm(server="https://127.0.0.1"), "runs on this machine"),
        (vllm(agreement=-1.0), "above 0, got -1"),
        (vllm(server="unix:///x", max_model_len=9), "given where it is started"),
    ],
)
def test_settings_that_would_be_ignored_or_unsafe_are_refused(
    values: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        check(sampling(**values))


@pytest.mark.parametrize("server", ["http://localhost:1", "http://[::1]:1/v1", "unix:///a/b"])
def test_servers_of_this_machine_are_taken(server: str) -> None:
    check(sampling(**vllm(server=server)))


@pytest.mark.parametrize(("server", "needed"), [(None, "vllm"), ("unix:///a", "httpx")])
def test_an_engine_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, server: str | None, needed: str
) -> None:
    config = sampling(**vllm(**({"server": server} if server else {})))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=f"needs {needed}: pip install"):
        check_installed(config)
    assert "vllm" in dry_run(config)  # which loads nothing, and needs nothing


def test_only_engines_that_exist_are_offered() -> None:
    with pytest.raises(ValueError, match=r"is one of auto, .*transformers, vllm, got 'grup'"):
        sampling(engine="grup")
    check_installed(sampling(engine="transformers"))
