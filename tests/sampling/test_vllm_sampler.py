"""A vLLM server: what it draws, how likely it says it was, and whose weights it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

pytest.importorskip("vllm", reason="vLLM is tested in an environment of its own")

from bestofk.models import Policy, save, tiny
from bestofk.models.load import Lora, with_adapters
from bestofk.sampling import Sampling, WeightHolder
from bestofk.sampling.decode import ModelSampler
from bestofk.sampling.draw import distribution
from bestofk.sampling.vllm_server import VLLMServer, write
from bestofk.sampling.vllm_worker import MEMORY
from bestofk.sampling.weights import named_weights
from bestofk.types import Group, Prompt
from vllm_models import ENDS, NOISE, PROMPTS, SERVED, gap, model, serving

pytestmark = NOISE

CLOSE = 1e-4
"""Of log-probs in float32; what is seen is below 5e-5."""


@pytest.fixture(scope="module")
def policy() -> Any:
    return model(1)


@pytest.fixture(scope="module")
def started(policy: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLMServer]:
    folder = tmp_path_factory.mktemp("served") / "model"
    save(Policy(policy, tiny.tokenizer()), folder)
    options = [*SERVED, "--enable-prompt-tokens-details"]
    with serving(str(folder), options=options) as url:
        server = VLLMServer(url, policy, tiny.tokenizer())
        assert server.version is None
        yield server
        server.close()


@pytest.fixture
def server(started: VLLMServer, policy: Any) -> VLLMServer:
    started.update(named_weights(policy), version=1)
    return started


def test_it_is_a_sampler_that_holds_weights(server: VLLMServer) -> None:
    assert isinstance(server, WeightHolder)
    assert server.version == 1
    assert not isinstance(ModelSampler(model(1), tiny.tokenizer()), WeightHolder)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_log_probs_are_the_learners_at_the_sampling_temperature(
    server: VLLMServer, policy: Any, temperature: float
) -> None:
    sampling = Sampling(samples_per_prompt=6, max_new_tokens=12, temperature=temperature)
    groups = server.sample(PROMPTS, seed=3, sampling=sampling)
    assert gap(policy, groups, temperature) < CLOSE


@pytest.mark.parametrize("sampling", [
    Sampling(samples_per_prompt=8, max_new_tokens=6, top_k=3),
    Sampling(samples_per_prompt=8, max_new_tokens=6, top_p=0.7, temperature=0.8),
    Sampling(samples_per_prompt=8, max_new_tokens=6, top_p=0.8, top_k=20),
], ids=["top_k", "top_p", "both"])  # fmt: skip
@torch.no_grad()
def test_log_probs_are_those_of_the_truncated_distribution(
    server: VLLMServer, policy: Any, sampling: Sampling
) -> None:
    for group in server.sample(PROMPTS[:2], seed=4, sampling=sampling):
        for done in group.trajectories:
            ids = torch.tensor([[*group.prompt_tokens, *done.tokens]])
            logits = policy(ids).logits[0, len(group.prompt_tokens) - 1 : -1]
            wanted = distribution(logits, sampling).gather(
                -1, torch.tensor(done.tokens).long()[:, None]
            )
            np.testing.assert_allclose(done.log_probs, wanted[:, 0].numpy(), atol=CLOSE)


@torch.no_grad()
def test_tokens_come_as_often_as_their_probability_says(server: VLLMServer, policy: Any) -> None:
    sampling = Sampling(samples_per_prompt=3000, max_new_tokens=1)
    (group,) = server.sample(PROMPTS[4:], seed=5, sampling=sampling)
    chances = policy(torch.tensor([group.prompt_tokens])).logits[0, -1].double().softmax(-1).numpy()
    seen = Counter(done.tokens[0] for done in group.trajectories)
    common = [token for token in range(len(chances)) if chances[token] * sampling.n >= 5]
    rest = sampling.n - sum(seen[t] for t in common), sampling.n * (1 - chances[common].sum())
    found = chisquare(
        [*(seen[t] for t in common), rest[0]], [*(chances[common] * sampling.n), rest[1]]
    )
    assert found.pvalue > 0.01


def test_groups_are_whole_and_completions_end_where_they_say(server: VLLMServer) -> None:
    sampling = Sampling(samples_per_prompt=16, max_new_tokens=8, stop=("15", "="))
    groups = server.sample(PROMPTS, seed=6, sampling=sampling)
    assert [group.prompt for group in groups] == PROMPTS
    small, ways = tiny.tokenizer(), Counter[str]()
    for group in groups:
        assert group.prompt_tokens == tuple(small(group.prompt.text)["input_ids"])
        assert len(group.trajectories) == sampling.n
        for done in group.trajectories:
            assert 1 <= len(done.tokens) == len(done.log_probs) <= 8
            assert all(value <= 0 for value in done.log_probs)
            shown = [token for token in done.tokens if token not in ENDS]
            whole = str(small.decode(shown, skip_special_tokens=True))
            ended = done.tokens[-1] in ENDS
            stopped = any(word in whole for word in sampling.stop)
            assert not set(done.tokens[:-1]) & set(ENDS)
            assert not any(word in done.text for word in sampling.stop)
            early = small.decode(list(done.tokens[:-1]), skip_special_tokens=True)
            assert not any(word in early for word in sampling.stop)
            assert whole.startswith(done.text)
            assert done.finish_reason == ("stop" if ended or stopped else "length")
            if done.finish_reason == "length":
                assert len(done.tokens) == 8
            ways["end" if ended else "stop" if stopped else "length"] += 1
    assert set(ways) == {"end", "stop", "length"}


def test_temperature_zero_takes_what_our_own_sampler_takes(server: VLLMServer, policy: Any) -> None:
    sampling = Sampling(samples_per_prompt=2, max_new_tokens=10, temperature=0.0)
    own = ModelSampler(policy, tiny.tokenizer()).sample(PROMPTS, seed=0, sampling=sampling)
    assert server.sample(PROMPTS, seed=0, sampling=sampling) == own


def test_draws_belong_to_seed_and_prompt(server: VLLMServer) -> None:
    sampling = Sampling(samples_per_prompt=6, max_new_tokens=10)
    first = server.sample(PROMPTS, seed=7, sampling=sampling)
    assert tokens(server.sample(PROMPTS, seed=7, sampling=sampling)) == tokens(first)
    assert tokens(server.sample(PROMPTS, seed=8, sampling=sampling)) != tokens(first)
    alone = server.sample([PROMPTS[2]], seed=7, sampling=sampling)
    assert tokens(alone) == tokens(first[2:3])
    fewer = server.sample(
        [PROMPTS[2]], seed=7, sampling=Sampling(samples_per_prompt=3, max_new_tokens=10)
    )
    assert tokens(fewer)[0] == tokens(alone)[0][:3]
    twice = server.sample([PROMPTS[0], PROMPTS[0]], seed=7, sampling=sampling)
    assert tokens(twice[:1]) == tokens(first[:1])
    assert tokens(twice[1:]) != tokens(twice[:1])
    assert len({row for group in tokens(first) for row in group}) > 20


def tokens(groups: list[Group]) -> list[list[tuple[int, ...]]]:
    return [[tuple(done.tokens.tolist()) for done in group.trajectories] for group in groups]


def test_an_update_makes_it_the_new_model(server: VLLMServer, policy: Any) -> None:
    sampling, other = Sampling(samples_per_prompt=4, max_new_tokens=10), model(2)
    server.update(named_weights(other), version=9)
    groups = server.sample(PROMPTS, seed=1, sampling=sampling)
    assert server.version == 9
    assert gap(other, groups) < CLOSE
    assert gap(policy, groups) > 1.0


def test_every_single_weight_arrives(server: VLLMServer, policy: Any) -> None:
    """A change of any one tensor is seen; a tied head counts as well as its embedding."""
    sampling = Sampling(samples_per_prompt=2, max_new_tokens=6)
    for name in dict(policy.named_parameters()):
        other = model(1)
        with torch.no_grad():
            other.get_parameter(name).mul_(-0.5)
        server.update(named_weights(other))
        groups = server.sample(PROMPTS[:2], seed=1, sampling=sampling)
        assert gap(other, groups) < CLOSE, name
        assert gap(policy, groups) > 100 * CLOSE, name


def test_it_keeps_a_copy(server: VLLMServer) -> None:
    """The optimiser changes the trained tensors in place; the sampler's are its own."""
    sampling, trained = Sampling(samples_per_prompt=4, max_new_tokens=10), model(3)
    server.update(named_weights(trained))
    before = server.sample(PROMPTS, seed=1, sampling=sampling)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(0.1)
    assert server.sample(PROMPTS, seed=1, sampling=sampling) == before


def test_the_prefix_cache_serves_nothing_old(server: VLLMServer, policy: Any) -> None:
    sampling, other = Sampling(samples_per_prompt=3, max_new_tokens=6), model(2)
    assert cached(server) == 0  # emptied by the update before this test
    server.sample(PROMPTS, seed=1, sampling=sampling)
    assert cached(server) >= 64  # of a prompt of about 150 tokens
    # Without its reset, the new model would continue from the old one's keys and values …
    with TemporaryDirectory(prefix="bestofk-weights-", dir=MEMORY) as folder:
        sent = write(named_weights(other), Path(folder), torch.float32)
        assert server._call("weights_from_memory", folder)["tensors"] == sent
    assert gap(other, server.sample(PROMPTS, seed=1, sampling=sampling)) > 0.1
    # … which is what `update` prevents.
    server.update(named_weights(policy))
    server.sample(PROMPTS, seed=1, sampling=sampling)
    server.update(named_weights(other))
    assert gap(other, server.sample(PROMPTS, seed=1, sampling=sampling)) < CLOSE


def cached(server: VLLMServer) -> int:
    """Tokens of the first prompt that vLLM finds computed already."""
    ids = tiny.tokenizer()(PROMPTS[0].text)["input_ids"]
    body = {"model": server.name, "prompt": ids, "max_tokens": 1}
    answer = server._send("POST", "/v1/completions", json=body)
    details = answer["usage"]["prompt_tokens_details"] or {}
    return int(details.get("cached_tokens") or 0)


def test_adapters_are_sampled_with(server: VLLMServer) -> None:
    adapted = with_adapters(model(1), Lora(rank=2))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(len(name)))
    server.update(named_weights(adapted))
    groups = server.sample(
        PROMPTS, seed=1, sampling=Sampling(samples_per_prompt=3, max_new_tokens=6)
    )
    assert gap(adapted, groups) < CLOSE
    assert gap(model(1), groups) > 0.1


def test_chat_and_empty_calls(server: VLLMServer) -> None:
    assert server.sample([], seed=0, sampling=Sampling(samples_per_prompt=2)) == []
    chat = Prompt("c", ({"role": "user", "content": "hello"},), "test")
    with pytest.raises(ValueError, match="no chat template"):
        server.sample([chat], seed=0, sampling=Sampling(samples_per_prompt=2))


def test_what_would_change_the_distribution_is_refused(server: VLLMServer) -> None:
    with pytest.raises(ValueError, match=r"at least 0\.01, got 0\.001"):
        server.sample(PROMPTS, seed=0, sampling=Sampling(samples_per_prompt=2, temperature=0.001))


def test_the_pages_example_runs_as_shown(server: VLLMServer) -> None:
    page = (Path(__file__).parents[2] / "docs" / "adapters" / "vllm.md").read_text("utf-8")
    block = page.partition("```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {
        "url": server.url,
        "model": model(4),
        "tokenizer": tiny.tokenizer(),
        "prompts": PROMPTS,
        "sampling": Sampling(samples_per_prompt=2, max_new_tokens=6),
    }
    exec(block, names)
    assert gap(model(4), names["groups"]) < CLOSE
    names["server"].close()
