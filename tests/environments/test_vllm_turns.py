"""Trajectories from a real vLLM server: each turn is a request with the token ids so far."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm", reason="vLLM is tested in an environment of its own")

import bestofk
from bestofk.environments.author_class import as_environment
from bestofk.environments.limits import TurnLimits
from bestofk.environments.rollout import TurnSampler
from bestofk.models import Policy, save
from bestofk.sampling import Sampling
from bestofk.sampling.vllm_server import VLLMServer
from bestofk.types import Prompt
from environments.chat_models import Echo, model, tokenizer
from environments.exact_rows import gap_of_own_tokens
from vllm_models import NOISE, SERVED, serving

pytestmark = NOISE
SHAPE = {"hidden": 64, "heads": 2, "inner": 96, "length": 512}
CLOSE = 1e-4


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "chat"
    save(Policy(model(**SHAPE), tokenizer()), folder)
    return folder


@pytest.fixture(scope="module")
def url(chat):
    with serving(str(chat), options=SERVED) as url:
        yield url


def test_trajectories_are_exact_in_their_tokens_and_log_probs(url):
    """Against one plain forward pass; the same again from the same seed."""
    policy = model(**SHAPE)
    server = VLLMServer(url, policy, tokenizer())
    assert server.context == 512
    source = TurnSampler(
        server, as_environment(Echo), TurnLimits(), model="m", context=server.context
    )
    asked = [Prompt(f"p{i}", ({"role": "user", "content": f"{i}?"},), "t") for i in range(3)]
    sampling = Sampling(samples_per_prompt=6, max_new_tokens=300, temperature=0.8)
    groups = source.sample(asked, seed=3, sampling=sampling)
    talks = [each.conversation for group in groups for each in group.trajectories]
    assert sum(talk.turns > 1 for talk in talks if talk) >= 6
    assert gap_of_own_tokens(policy, groups, sampling) < CLOSE
    again = source.sample(asked, seed=3, sampling=sampling)
    drawn = [each.tokens.tolist() for group in groups for each in group.trajectories]
    assert [each.tokens.tolist() for group in again for each in group.trajectories] == drawn
    assert len(set(map(tuple, drawn))) == len(drawn)


def test_a_run_with_an_environment_trains_on_what_vllm_draws(url, chat, tmp_path):
    rows = [{"prompt": f"{i} and 7?"} for i in range(16)]
    run = bestofk.train(
        chat, rows, environment=Echo, objective="max@2", samples_per_prompt=4, steps=3,
        dir=tmp_path / "run", settings={
            "sampling.engine": "vllm", "sampling.server": url, "model.device": "cpu",
            "sampling.max_new_tokens": 300, "optimizer.learning_rate": 1e-2,
            "evaluation.prompts": 2, "evaluation.samples_per_prompt": 2,
            "sampling.prompts_per_step": 2,
        },
    )  # fmt: skip
    lines = [line for line in run.metrics if line["kind"] == "train"]
    assert [line["step"] for line in lines] == [1, 2, 3]
    for line in lines:
        assert line["turns"] > 1
        assert max(line["sampler_gap_max"], line["probe_after"]) < CLOSE
    assert min(line["probe_before"] for line in lines[1:]) > 1e-3
