"""What the sampler draws, how likely it says it was, and what it depends on."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from bestofk.learning import Learner
from bestofk.models import tiny
from bestofk.models.load import Lora, with_adapters
from bestofk.sampling import Sampling, cache
from bestofk.sampling.cache import rows_that_fit
from bestofk.sampling.decode import LEAVE, ModelSampler
from bestofk.sampling.draw import draw
from bestofk.sampling.prompts import encode, uniforms
from bestofk.types import Group, Prompt
from policies import MODELS, answers, fixed, gemma2, letters, llama, qwen3, table

PROMPTS = [Prompt(f"p{i}", "3 5 7 2 = 24:"[: 3 + 2 * i] + ":", "test") for i in range(5)]


def tiny_policy() -> tuple[Any, Any]:
    return fixed(lambda: tiny.untrained(hidden=32, layers=2, inner=48)), tiny.tokenizer()


ENDS = list(range(1, 11))


def own(model: PreTrainedModel) -> ModelSampler:
    """A sampler for models of 60 tokens, ten of which end a completion."""
    assert model.generation_config is not None
    model.generation_config.eos_token_id = ENDS
    return ModelSampler(model, letters(60, end=1))


LETTERS = [Prompt(f"p{i}", "cdefghijkl"[: 2 + 3 * (i % 3)], "test") for i in range(6)]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(samples_per_prompt=3000, max_new_tokens=3),
        Sampling(samples_per_prompt=3000, max_new_tokens=3, temperature=0.6),
        Sampling(samples_per_prompt=3000, max_new_tokens=3, top_k=2),
        Sampling(samples_per_prompt=3000, max_new_tokens=3, top_p=0.7),
    ],
    ids=["plain", "temperature", "top_k", "top_p"],
)
def test_completions_come_with_their_probability(sampling: Sampling) -> None:
    """Chi-square over every possible completion, against probabilities by enumeration."""
    logits = np.random.default_rng(0).normal(size=(4, 4))
    end, prompt = 0, 3
    sampler = ModelSampler(table(logits, end), letters(4, end))
    (group,) = sampler.sample([Prompt("p", "d", "test")], seed=1, sampling=sampling)
    steps = by_hand(logits, sampling)
    expected = {}
    for answer in answers(4, end, sampling.max_new_tokens):
        chance = np.prod([steps[a, b] for a, b in zip((prompt, *answer), answer, strict=False)])
        expected[answer] = chance * sampling.n
    assert sum(expected.values()) == pytest.approx(sampling.n)
    seen = Counter(tuple(done.tokens.tolist()) for done in group.trajectories)
    assert all(expected[answer] > 0 for answer in seen)
    common = [answer for answer in expected if expected[answer] >= 5]
    rest = sampling.n - sum(seen[a] for a in common), sampling.n - sum(expected[a] for a in common)
    test = chisquare(
        [*(seen[a] for a in common), rest[0] + 1e-9],
        [*(expected[a] for a in common), rest[1] + 1e-9],
    )
    assert test.pvalue > 0.01
    for done in group.trajectories:
        wanted = [steps[a, b] for a, b in zip((prompt, *done.tokens), done.tokens, strict=False)]
        np.testing.assert_allclose(np.exp(done.log_probs), wanted, rtol=1e-5)


def by_hand(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Next-token probabilities: temperature, the k best, the fewest that hold p."""
    rows = []
    for row in np.exp(logits / sampling.temperature):
        order = np.argsort(-row)
        keep = list(order[: sampling.top_k or len(row)])
        share, total = row / row[keep].sum(), 0.0
        kept = np.zeros(len(row), dtype=bool)
        for token in keep:
            if total < sampling.top_p:
                kept[token] = True
            total += share[token]
        rows.append(np.where(kept, row, 0.0) / row[kept].sum())
    return np.array(rows)


def adapted() -> Any:
    model = with_adapters(qwen3(), Lora(rank=2))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize(
    ("make", "temperature"),
    [*[(make, 1.0) for make in MODELS.values()], (llama, 0.7), (adapted, 1.0)],
)
def test_sampler_and_learner_agree_on_log_probs(make: Any, temperature: float) -> None:
    """Prompts of different lengths, rows that leave early: the cache is right all the way."""
    model = fixed(make)
    sampling = Sampling(samples_per_prompt=6, max_new_tokens=20, temperature=temperature)
    groups = own(model).sample(LETTERS, seed=0, sampling=sampling)
    lengths = {len(done.tokens) for one in groups for done in one.trajectories}
    assert min(lengths) < 8
    assert max(lengths) > 12
    scores = Learner(model, temperature=temperature).log_probs(groups)
    for one, rows in zip(groups, scores.tokens, strict=True):
        for done, row in zip(one.trajectories, rows, strict=True):
            np.testing.assert_allclose(done.log_probs, row, atol=5e-5)


def drawn(groups: list[Group]) -> list[list[tuple[int, ...]]]:
    return [[done.tokens.tolist() for done in one.trajectories] for one in groups]


def test_a_draw_belongs_to_the_seed_the_prompt_and_how_often_it_came() -> None:
    """Alone, in turns and among others: so one process and two draw the same global batch."""
    sampling = Sampling(samples_per_prompt=4, max_new_tokens=8)
    sampler, turns = own(fixed(llama)), own(fixed(llama))
    turns.max_rows = 8
    together = drawn(sampler.sample(LETTERS, seed=3, sampling=sampling))
    for found in (
        sampler.sample(LETTERS, seed=3, sampling=sampling),
        turns.sample(LETTERS, seed=3, sampling=sampling),
        [sampler.sample([p], seed=3, sampling=sampling)[0] for p in LETTERS],
        sampler.sample(LETTERS[::-1], seed=3, sampling=sampling)[::-1],
    ):
        assert drawn(found) == together
    assert drawn(sampler.sample(LETTERS, seed=4, sampling=sampling)) != together
    one, two = drawn(sampler.sample([LETTERS[0]] * 2, seed=0, sampling=sampling))
    assert one != two


def test_more_samples_begin_with_the_fewer() -> None:
    few, many = uniforms(PROMPTS, 0, 3, 5), uniforms(PROMPTS, 0, 6, 5)
    np.testing.assert_array_equal(many[:, :3], few)
    assert len(np.unique(many)) == many.size


def test_a_prompt_is_prefilled_once_and_finished_rows_leave_the_batch() -> None:
    model = fixed(llama)
    seen: list[tuple[int, ...]] = []
    model.get_decoder().layers[0].register_forward_hook(
        lambda module, inputs, out: seen.append(tuple(inputs[0].shape[:2]))
    )
    sampler, sampling = own(model), Sampling(samples_per_prompt=6, max_new_tokens=20)
    sampler.sample(LETTERS, seed=0, sampling=sampling)
    seen.clear()  # the first call tries the cache out
    groups = sampler.sample(LETTERS, seed=0, sampling=sampling)
    assert seen[0] == (6, 8)
    assert seen[1] == (36, 1)
    lengths = [len(done.tokens) for one in groups for done in one.trajectories]
    for step, (batch, _) in enumerate(seen[1:], 1):
        alive = sum(length > step for length in lengths)
        assert alive <= batch <= alive / (1 - LEAVE) + 1
    assert seen[-1][0] < 36


def test_a_completion_ends_with_its_end_token_or_at_the_limit() -> None:
    groups = own(fixed(llama)).sample(
        LETTERS, seed=0, sampling=Sampling(samples_per_prompt=6, max_new_tokens=10)
    )
    spelled, reasons = letters(60, end=1), set()
    for done in (done for one in groups for done in one.trajectories):
        reasons.add(done.finish_reason)
        assert not set(ENDS) & set(done.tokens[:-1])
        assert len(done.log_probs) == len(done.tokens)
        if done.finish_reason == "stop":
            assert done.tokens[-1] in ENDS
            assert done.text == spelled.decode(list(done.tokens[:-1]), skip_special_tokens=True)
        else:
            assert len(done.tokens) == 10
            assert done.tokens[-1] not in ENDS
    assert reasons == {"stop", "length"}


def test_a_stop_string_ends_the_completion_and_is_not_in_its_text() -> None:
    model, small = tiny_policy()
    sampling = Sampling(samples_per_prompt=64, max_new_tokens=40)
    free = ModelSampler(model, small).sample(PROMPTS, seed=0, sampling=sampling)
    stopped = ModelSampler(model, small).sample(
        PROMPTS,
        seed=0,
        sampling=Sampling(samples_per_prompt=64, max_new_tokens=40, stop=("7", "ab")),
    )
    cut = 0
    for one, two in zip(free, stopped, strict=True):
        for before, after in zip(one.trajectories, two.trajectories, strict=True):
            assert before.tokens[: len(after.tokens)].tolist() == after.tokens.tolist()
            assert "7" not in after.text
            if len(after.tokens) < len(before.tokens):
                cut += 1
                assert after.finish_reason == "stop"
                assert "7" in small.decode(after.tokens) or "ab" in small.decode(after.tokens)
    assert cut > 50


def test_a_stop_string_ends_the_completion_where_its_characters_are_several_tokens() -> None:
    """A policy that writes the bytes of one character again and again, each a token."""
    bytes_of = {token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    core = Tokenizer(BPE(bytes_of, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    ids = core.encode("🙂").ids
    logits = np.zeros((256, 256))
    logits[ids, ids[1:] + ids[:1]] = 99.0
    sampler = ModelSampler(table(logits), PreTrainedTokenizerFast(tokenizer_object=core))
    sampling = Sampling(samples_per_prompt=2, max_new_tokens=40, stop=("🙂🙂🙂",))
    (group,) = sampler.sample([Prompt("a", "🙂", "t")], seed=0, sampling=sampling)
    for one in group.trajectories:
        assert one.tokens.tolist() == ids * 3
        assert (one.text, one.finish_reason) == ("", "stop")


def test_temperature_0_takes_the_most_likely_token() -> None:
    model = fixed(llama)
    sampling = Sampling(samples_per_prompt=2, max_new_tokens=6, temperature=0.0)
    (one,) = own(model).sample(LETTERS[:1], seed=0, sampling=sampling)
    ids = list(one.prompt_tokens)
    for token in one.trajectories[1].tokens:
        with torch.no_grad():
            assert token == int(model(torch.tensor([ids])).logits[0, -1].argmax())
        ids.append(token)
    assert set(one.trajectories[0].log_probs) == {0.0}
    for cut in (sampling, Sampling(top_k=2), Sampling(top_p=0.9)):
        assert cut.truncated
    assert not Sampling().truncated


def test_sampling_leaves_the_model_as_it_was() -> None:
    model = fixed(gemma2).train()
    before = model.config._attn_implementation
    own(model).sample(LETTERS, seed=0, sampling=Sampling(samples_per_prompt=2, max_new_tokens=3))
    assert model.training
    assert model.config._attn_implementation == before


def test_rows_take_turns_when_their_keys_and_values_do_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three layers of two heads of 8: 384 bytes a token, keys and values together."""
    model = fixed(llama)
    assert rows_that_fit(model.config, 100, 384 * 100 * 7 + 5) == 7
    rows: list[int] = []
    model.get_decoder().layers[0].register_forward_hook(
        lambda module, inputs, out: rows.append(inputs[0].shape[0])
    )
    sampling = Sampling(samples_per_prompt=2, max_new_tokens=8)
    sampler = own(model)
    free = sampler.sample(LETTERS, seed=0, sampling=sampling)
    monkeypatch.setattr(cache, "room_on", lambda device: 384 * (8 + 8) * 4.0)
    rows.clear()
    assert [
        g.trajectories[0].tokens.tolist()
        for g in sampler.sample(LETTERS, seed=0, sampling=sampling)
    ] == [g.trajectories[0].tokens.tolist() for g in free]
    assert max(rows) == 4


def test_the_ends_of_the_unit_interval_draw_tokens_that_can_be_drawn() -> None:
    never = -torch.inf
    logits = torch.tensor([[never, 0.0, never, 0.0, never]]).expand(3, -1)
    uniform = torch.tensor([0.0, 0.5, 1 - 2**-53], dtype=torch.float64)
    tokens, log_probs = draw(logits, uniform, Sampling())
    assert tokens.tolist() == [1, 3, 3]
    np.testing.assert_allclose(log_probs.exp(), 0.5)


def test_chat_prompts_need_a_template_and_get_the_assistants_turn() -> None:
    small = tiny.tokenizer()
    chat = Prompt("c", ({"role": "user", "content": "hi"},), "test")
    with pytest.raises(ValueError, match="no chat template"):
        encode(small, chat)
    small.chat_template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    assert small.decode(list(encode(small, chat))) == "[user]hi[assistant]"
    with pytest.raises(ValueError, match="no tokens"):
        encode(small, Prompt("e", "", "test"))


BAD = [
    ({"samples_per_prompt": 0}, "samples_per_prompt is at least 1"),
    ({"temperature": -1.0}, "temperature is at least 0"),
    ({"top_p": 0.0}, "top_p is above 0"),
    ({"top_k": -1}, "top_k is at least 0"),
    ({"stop": ("",)}, "at least one character"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_wrong_parameters_say_what_is_wrong(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling(**options)


@pytest.mark.gpu
def test_cuda_draws_what_the_cpu_draws() -> None:
    sampling = Sampling(samples_per_prompt=4, max_new_tokens=8)
    here = own(fixed(llama)).sample(LETTERS, seed=0, sampling=sampling)
    there = own(fixed(llama, device="cuda")).sample(LETTERS, seed=0, sampling=sampling)
    for one, two in zip(here, there, strict=True):
        for a, b in zip(one.trajectories, two.trajectories, strict=True):
            assert a.tokens.tolist() == b.tokens.tolist()
            np.testing.assert_allclose(a.log_probs, b.log_probs, atol=1e-3)
