"""vLLM in this process: what it draws, how likely it says it was, and whose weights it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

pytest.importorskip("vllm", reason="vLLM is tested in an environment of its own")

from bestofk.models import Policy, load, save, tiny
from bestofk.models.load import Lora, with_adapters
from bestofk.sampling import Sampling, WeightHolder
from bestofk.sampling.decode import ModelSampler
from bestofk.sampling.draw import distribution
from bestofk.sampling.vllm import EngineError, VLLMEngine
from bestofk.sampling.vllm_worker import load as load_into
from bestofk.sampling.weights import named_weights
from bestofk.types import Group, Prompt
from vllm_models import ENDS, ENGINE, NOISE, PROMPTS, gap, model

pytestmark = NOISE

CLOSE = 1e-4
"""Of log-probs in float32; what is seen is below 5e-5."""


@pytest.fixture(scope="module")
def policy() -> Any:
    return model(1)


@pytest.fixture(scope="module")
def started(policy: Any) -> Iterator[VLLMEngine]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    engine = VLLMEngine(policy, tiny.tokenizer(), options=ENGINE)
    with pytest.raises(EngineError, match="no weights"):
        engine.sample(PROMPTS, seed=0, sampling=Sampling(samples_per_prompt=1))
    yield engine
    engine.close()
    torch.set_num_threads(threads)


@pytest.fixture
def engine(started: VLLMEngine, policy: Any) -> VLLMEngine:
    started.update(named_weights(policy), version=1)
    return started


def test_it_is_a_sampler_that_holds_weights(engine: VLLMEngine) -> None:
    assert isinstance(engine, WeightHolder)
    assert engine.version == 1
    assert not isinstance(ModelSampler(model(1), tiny.tokenizer()), WeightHolder)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_log_probs_are_the_learners_at_the_sampling_temperature(
    engine: VLLMEngine, policy: Any, temperature: float
) -> None:
    sampling = Sampling(samples_per_prompt=6, max_new_tokens=12, temperature=temperature)
    groups = engine.sample(PROMPTS, seed=3, sampling=sampling)
    assert gap(policy, groups, temperature) < CLOSE


@pytest.mark.parametrize("sampling", [
    Sampling(samples_per_prompt=8, max_new_tokens=6, top_k=3),
    Sampling(samples_per_prompt=8, max_new_tokens=6, top_p=0.7, temperature=0.8),
    Sampling(samples_per_prompt=8, max_new_tokens=6, top_p=0.8, top_k=20),
], ids=["top_k", "top_p", "both"])  # fmt: skip
@torch.no_grad()
def test_log_probs_are_those_of_the_truncated_distribution(
    engine: VLLMEngine, policy: Any, sampling: Sampling
) -> None:
    for group in engine.sample(PROMPTS[:2], seed=4, sampling=sampling):
        for done in group.trajectories:
            ids = torch.tensor([[*group.prompt_tokens, *done.tokens]])
            logits = policy(ids).logits[0, len(group.prompt_tokens) - 1 : -1]
            wanted = distribution(logits, sampling).gather(
                -1, torch.tensor(done.tokens).long()[:, None]
            )
            np.testing.assert_allclose(done.log_probs, wanted[:, 0].numpy(), atol=CLOSE)


@torch.no_grad()
def test_tokens_come_as_often_as_their_probability_says(engine: VLLMEngine, policy: Any) -> None:
    sampling = Sampling(samples_per_prompt=3000, max_new_tokens=1)
    (group,) = engine.sample(PROMPTS[4:], seed=5, sampling=sampling)
    chances = policy(torch.tensor([group.prompt_tokens])).logits[0, -1].double().softmax(-1).numpy()
    seen = Counter(done.tokens[0] for done in group.trajectories)
    common = [token for token in range(len(chances)) if chances[token] * sampling.n >= 5]
    rest = sampling.n - sum(seen[t] for t in common), sampling.n * (1 - chances[common].sum())
    found = chisquare(
        [*(seen[t] for t in common), rest[0]], [*(chances[common] * sampling.n), rest[1]]
    )
    assert found.pvalue > 0.01


def test_groups_are_whole_and_completions_end_where_they_say(engine: VLLMEngine) -> None:
    sampling = Sampling(samples_per_prompt=16, max_new_tokens=8, stop=("15", "="))
    groups = engine.sample(PROMPTS, seed=6, sampling=sampling)
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


def test_temperature_zero_takes_what_our_own_sampler_takes(engine: VLLMEngine, policy: Any) -> None:
    sampling = Sampling(samples_per_prompt=2, max_new_tokens=10, temperature=0.0)
    own = ModelSampler(policy, tiny.tokenizer()).sample(PROMPTS, seed=0, sampling=sampling)
    assert engine.sample(PROMPTS, seed=0, sampling=sampling) == own


def test_draws_belong_to_seed_and_prompt(engine: VLLMEngine) -> None:
    sampling = Sampling(samples_per_prompt=6, max_new_tokens=10)
    first = engine.sample(PROMPTS, seed=7, sampling=sampling)
    assert tokens(engine.sample(PROMPTS, seed=7, sampling=sampling)) == tokens(first)
    assert tokens(engine.sample(PROMPTS, seed=8, sampling=sampling)) != tokens(first)
    alone = engine.sample([PROMPTS[2]], seed=7, sampling=sampling)
    assert tokens(alone) == tokens(first[2:3])
    fewer = engine.sample(
        [PROMPTS[2]], seed=7, sampling=Sampling(samples_per_prompt=3, max_new_tokens=10)
    )
    assert tokens(fewer)[0] == tokens(alone)[0][:3]
    twice = engine.sample([PROMPTS[0], PROMPTS[0]], seed=7, sampling=sampling)
    assert tokens(twice[:1]) == tokens(first[:1])
    assert tokens(twice[1:]) != tokens(twice[:1])
    assert len({row for group in tokens(first) for row in group}) > 20


def tokens(groups: list[Group]) -> list[list[tuple[int, ...]]]:
    return [[done.tokens.tolist() for done in group.trajectories] for group in groups]


def test_an_update_makes_it_the_new_model(engine: VLLMEngine, policy: Any) -> None:
    sampling, other = Sampling(samples_per_prompt=4, max_new_tokens=10), model(2)
    engine.update(named_weights(other), version=9)
    groups = engine.sample(PROMPTS, seed=1, sampling=sampling)
    assert engine.version == 9
    assert gap(other, groups) < CLOSE
    assert gap(policy, groups) > 1.0


def test_every_single_weight_arrives(engine: VLLMEngine, policy: Any) -> None:
    """A change of any one tensor is seen; a tied head counts as well as its embedding."""
    sampling = Sampling(samples_per_prompt=2, max_new_tokens=6)
    for name in dict(policy.named_parameters()):
        other = model(1)
        with torch.no_grad():
            other.get_parameter(name).mul_(-0.5)
        engine.update(named_weights(other))
        groups = engine.sample(PROMPTS[:2], seed=1, sampling=sampling)
        assert gap(other, groups) < CLOSE, name
        assert gap(policy, groups) > 100 * CLOSE, name


def test_it_keeps_a_copy(engine: VLLMEngine) -> None:
    """The optimiser changes the trained tensors in place; the sampler's are its own."""
    sampling, trained = Sampling(samples_per_prompt=4, max_new_tokens=10), model(3)
    engine.update(named_weights(trained))
    before = engine.sample(PROMPTS, seed=1, sampling=sampling)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(0.1)
    assert engine.sample(PROMPTS, seed=1, sampling=sampling) == before


def test_the_prefix_cache_serves_nothing_old(engine: VLLMEngine, policy: Any) -> None:
    sampling, other = Sampling(samples_per_prompt=3, max_new_tokens=6), model(2)
    assert cached(engine) == 0  # emptied by the update before this test
    engine.sample(PROMPTS, seed=1, sampling=sampling)
    assert cached(engine) >= 64  # of a prompt of about 150 tokens
    # Without its reset, the new model would go on from the old one's keys and values …
    engine.llm.collective_rpc(load_into, args=(named_weights(other),))
    assert gap(other, engine.sample(PROMPTS, seed=1, sampling=sampling)) > 0.1
    # … which is what `update` prevents.
    engine.update(named_weights(policy))
    engine.sample(PROMPTS, seed=1, sampling=sampling)
    engine.update(named_weights(other))
    assert gap(other, engine.sample(PROMPTS, seed=1, sampling=sampling)) < CLOSE


def cached(engine: VLLMEngine) -> int:
    """Tokens of the first prompt that vLLM finds computed already."""
    from vllm import SamplingParams

    ids: Any = {"prompt_token_ids": tiny.tokenizer()(PROMPTS[0].text)["input_ids"]}
    with torch.compiler.set_stance("force_eager"):
        (found,) = engine.llm.generate(ids, SamplingParams(max_tokens=1), use_tqdm=False)
    engine_cached = found.num_cached_tokens or 0
    return int(engine_cached)


def test_adapters_are_sampled_with(engine: VLLMEngine) -> None:
    adapted = with_adapters(model(1), Lora(rank=2))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(len(name)))
    engine.update(named_weights(adapted))
    groups = engine.sample(
        PROMPTS, seed=1, sampling=Sampling(samples_per_prompt=3, max_new_tokens=6)
    )
    assert gap(adapted, groups) < CLOSE
    assert gap(model(1), groups) > 0.1


def test_chat_and_empty_calls(engine: VLLMEngine) -> None:
    assert engine.sample([], seed=0, sampling=Sampling(samples_per_prompt=2)) == []
    chat = Prompt("c", ({"role": "user", "content": "hello"},), "test")
    with pytest.raises(ValueError, match="no chat template"):
        engine.sample([chat], seed=0, sampling=Sampling(samples_per_prompt=2))


def test_what_would_change_the_distribution_is_refused(engine: VLLMEngine) -> None:
    with pytest.raises(ValueError, match=r"at least 0\.01, got 0\.001"):
        engine.sample(PROMPTS, seed=0, sampling=Sampling(samples_per_prompt=2, temperature=0.001))
    with pytest.raises(ValueError, match="logprobs_mode is 'processed_logprobs'"):
        VLLMEngine(model(1), tiny.tokenizer(), options={"logprobs_mode": "raw_logprobs"})


def test_a_model_that_the_cpu_build_cannot_take_is_refused_in_words() -> None:
    shipped = load("tiny-countdown")
    with pytest.raises(ValueError, match=r"heads of 32, 64, .* and this model's have 16"):
        VLLMEngine(shipped.model, shipped.tokenizer)


def test_the_pages_example_runs_as_shown(engine: VLLMEngine) -> None:
    page = (Path(__file__).parents[2] / "docs" / "adapters" / "vllm.md").read_text("utf-8")
    block = page.partition("```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {
        "model": model(4),
        "tokenizer": tiny.tokenizer(),
        "prompts": PROMPTS,
        "sampling": Sampling(samples_per_prompt=2, max_new_tokens=6),
    }
    exec(block, names)
    assert gap(model(4), names["groups"]) < CLOSE
    names["engine"].close()
    assert engine.version == 1  # and goes on, beside the one that was closed
    again = engine.sample(
        PROMPTS, seed=1, sampling=Sampling(samples_per_prompt=2, max_new_tokens=6)
    )
    assert gap(model(1), again) < CLOSE


@pytest.mark.gpu
def test_it_sleeps_while_the_learner_works(tmp_path: Path) -> None:
    policy = Policy(model(1).cuda(), tiny.tokenizer(), "test")
    save(policy, tmp_path / "model")
    engine = VLLMEngine(policy.model, policy.tokenizer, options={"max_model_len": 512})
    engine.update(named_weights(policy.model), version=1)
    before = engine.sample(
        PROMPTS, seed=1, sampling=Sampling(samples_per_prompt=2, max_new_tokens=6)
    )
    taken = torch.cuda.mem_get_info()[0]
    engine.sleep()
    assert torch.cuda.mem_get_info()[0] > taken + 2**30
    assert engine.version is None
    with pytest.raises(EngineError, match="no weights"):
        engine.sample(PROMPTS, seed=1, sampling=Sampling(samples_per_prompt=2))
    engine.update(named_weights(policy.model), version=2)
    assert (
        engine.sample(PROMPTS, seed=1, sampling=Sampling(samples_per_prompt=2, max_new_tokens=6))
        == before
    )
    engine.close()
