"""The group engine by its plain twins, on CPU: draws, refills, compaction, fallbacks."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from bestofk.learning import Learner
from bestofk.models.load import Lora, with_adapters
from bestofk.sampling import Sampling
from bestofk.sampling.decode import ModelSampler
from bestofk.sampling.engine import engine_model
from bestofk.sampling.engine.attention_interface import CannotRun
from bestofk.sampling.engine.engine_model import EngineModel
from bestofk.sampling.engine.group_sampler import GroupSampler
from bestofk.sampling.engine.linear_layers import AdaptedLinear, JoinedLinear
from bestofk.sampling.engine.memory import make_plan, room_for
from bestofk.sampling.engine.operands import SlotField
from bestofk.sampling.engine.slots import SlotTable
from bestofk.types import Group, Prompt
from fused_models import family
from policies import MODELS, fixed, letters, llama, table

PROMPTS = [Prompt(str(i), "abcdefghij"[: 1 + (i * 3) % 9], "test") for i in range(5)]
TOKENIZER = letters(26, end=1)


def shallow(**changes: Any) -> Any:
    """One layer, where it is about rows and slots."""
    return llama(num_hidden_layers=1, **changes)


def rows(groups: list[Group]) -> list[Any]:
    return [
        (c.tokens.tolist(), c.text, c.finish_reason) for group in groups for c in group.trajectories
    ]


def log_probs(groups: list[Group]) -> np.ndarray:
    return np.concatenate([c.log_probs for group in groups for c in group.trajectories])


PARAMS = {
    "plain": Sampling(samples_per_prompt=4, max_new_tokens=20),
    "truncated": Sampling(
        samples_per_prompt=3, max_new_tokens=9, temperature=0.7, top_p=0.8, top_k=20
    ),
    "greedy": Sampling(samples_per_prompt=2, max_new_tokens=9, temperature=0.0),
    "stop": Sampling(samples_per_prompt=4, max_new_tokens=30, stop=("c", "da")),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("way", PARAMS)
def test_groups_are_those_of_the_present_sampler(name: str, way: str) -> None:
    """Shared prefixes, ragged prompts, windows and caps: the same tokens and log-probs."""
    model, sampling = fixed(MODELS[name]), PARAMS[way]
    expected = ModelSampler(model, TOKENIZER).sample(PROMPTS, seed=3, sampling=sampling)
    sampler = GroupSampler(model, TOKENIZER)
    found = sampler.sample(PROMPTS, seed=3, sampling=sampling)
    assert sampler.reason is None
    assert rows(found) == rows(expected)
    np.testing.assert_allclose(log_probs(found), log_probs(expected), atol=5e-5)


@pytest.mark.parametrize("name", ["Llama", "Qwen2", "Qwen3", "Mistral"])
@pytest.mark.parametrize("way", ["plain", "stop"])
def test_fused_layers_draw_the_same(name: str, way: str) -> None:
    """Biases, norms of heads and windows included; greedy and drawn, refilled and compacted."""
    model, sampling = fixed(lambda: family(name)), PARAMS[way]
    expected = ModelSampler(model, TOKENIZER).sample(PROMPTS, seed=3, sampling=sampling)
    sampler = GroupSampler(model, TOKENIZER, copied=True, max_rows=16)
    found = sampler.sample(PROMPTS, seed=3, sampling=sampling)
    assert sampler.resident.engine_model is not None
    assert sampler.resident.engine_model.fused_model is not None
    assert rows(found) == rows(expected)
    np.testing.assert_allclose(log_probs(found), log_probs(expected), atol=5e-5)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(-1.1)
    again = sampler.sample(PROMPTS, seed=3, sampling=sampling)
    assert rows(again) == rows(
        ModelSampler(model, TOKENIZER).sample(PROMPTS, seed=3, sampling=sampling)
    )


@pytest.mark.parametrize("name", ["Granite", "Gemma", "SmolLM3"])
def test_layers_that_only_look_alike_are_run_by_the_model_itself(name: str) -> None:
    """Granite scales what a layer adds; Gemma adds one to the gain of its norms; a layer of SmolLM3
    does not rotate."""
    model = fixed(lambda: family(name))
    sampler = GroupSampler(model, TOKENIZER, copied=True)
    found = sampler.sample(PROMPTS, seed=3, sampling=PARAMS["plain"])
    assert sampler.resident.engine_model is not None
    assert sampler.resident.engine_model.fused_model is None
    expected = ModelSampler(model, TOKENIZER).sample(PROMPTS, seed=3, sampling=PARAMS["plain"])
    assert rows(found) == rows(expected)


@pytest.mark.parametrize("seed", range(3))
def test_rounding_does_not_decide_which_layers_are_fused(seed: int) -> None:
    """In bfloat16, and where many layers add up to much rounding."""
    torch.manual_seed(seed)
    for name in ("Llama", "Qwen2", "Qwen3", "Mistral"):
        assert EngineModel(family(name).eval(), torch.bfloat16, copied=True).fused_model is not None
    for name in ("Granite", "SmolLM3"):
        assert EngineModel(family(name).eval(), torch.bfloat16, copied=True).fused_model is None
    deep = llama(num_hidden_layers=24, initializer_range=0.3).eval()
    assert EngineModel(deep, torch.bfloat16, copied=True).fused_model is not None
    assert EngineModel(with_adapters(deep.bfloat16(), Lora(rank=2)), torch.bfloat16).fused_model


def test_a_small_call_first_does_not_bind_the_larger_ones_after_it() -> None:
    """A probe of a few rows at start-up, then groups of many: the engine grows once and stays."""
    model = fixed(shallow)
    sampler = GroupSampler(model, TOKENIZER)
    few = Sampling(samples_per_prompt=2, max_new_tokens=4)
    many = Sampling(samples_per_prompt=40, max_new_tokens=6)
    sampler.sample(PROMPTS[:1], seed=0, sampling=few)
    small = sampler.plan
    found = sampler.sample(PROMPTS, seed=0, sampling=many)
    assert sampler.reason is None
    assert small is not None
    assert sampler.plan is not None
    assert sampler.plan.slots >= 200 > small.slots
    assert rows(found) == rows(
        ModelSampler(model, TOKENIZER).sample(PROMPTS, seed=0, sampling=many)
    )
    engine = sampler.engine
    for sampling in (few, many):
        sampler.sample(PROMPTS, seed=1, sampling=sampling)
    assert sampler.engine is engine


def test_refilled_and_compacted_rows_are_those_of_one_wide_batch() -> None:
    """40 rows through 16 slots: rows begin late, move to other slots, and draw the same."""
    prompts = [Prompt(str(i), "abcdefghij"[: 1 + i % 9], "test") for i in range(10)]
    sampling = Sampling(samples_per_prompt=4, max_new_tokens=70)
    model = fixed(shallow)
    whole = GroupSampler(model, TOKENIZER)
    wide = whole.sample(prompts, seed=1, sampling=sampling)
    narrow = GroupSampler(model, TOKENIZER, max_rows=16)
    found = narrow.sample(prompts, seed=1, sampling=sampling)
    assert narrow.plan is not None
    assert narrow.plan.slots == 16
    assert rows(found) == rows(wide)
    assert whole.stats["slot_steps"] < whole.stats["steps"] * 64  # the batch became narrower


@pytest.mark.parametrize(("max_rows", "lengths"), [(16, [70]), (2048, [63, 64])])
def test_rows_that_never_end_are_those_of_the_present_sampler(
    max_rows: int, lengths: list[int]
) -> None:
    """Most of their tokens become lists before the last ones are drawn; 24 rows in 16 slots too."""
    prompts = [Prompt(str(i), "abcdefghij"[: 1 + i], "test") for i in range(6)]
    model, endless = fixed(lambda: shallow(eos_token_id=None)), letters(26)
    sampler = GroupSampler(model, endless, max_rows=max_rows)
    for length in lengths:
        sampling = Sampling(samples_per_prompt=4, max_new_tokens=length)
        expected = ModelSampler(model, endless).sample(prompts, seed=2, sampling=sampling)
        found = sampler.sample(prompts, seed=2, sampling=sampling)
        assert rows(found) == rows(expected)
        assert {len(c.tokens) for group in found for c in group.trajectories} == {length}
        np.testing.assert_allclose(log_probs(found), log_probs(expected), atol=5e-5)


def test_a_batch_that_does_not_fit_is_taken_in_turns() -> None:
    sampling = Sampling(samples_per_prompt=3, max_new_tokens=8)
    model = fixed(llama)
    expected = GroupSampler(model, TOKENIZER).sample(PROMPTS, seed=1, sampling=sampling)
    small = GroupSampler(model, TOKENIZER, memory_gib=3e-5)
    assert rows(small.sample(PROMPTS, seed=1, sampling=sampling)) == rows(expected)
    assert small.plan is not None
    assert small.plan.slots * 8 < 15 * 8
    with pytest.raises(ValueError, match=r"GiB for its keys and values.*fewer new tokens"):
        GroupSampler(model, TOKENIZER, memory_gib=1e-6).sample(PROMPTS, seed=1, sampling=sampling)


def test_groups_come_as_they_are_completed() -> None:
    """The row that ends early is not kept back by its neighbours."""
    sampler = GroupSampler(fixed(shallow), TOKENIZER, max_rows=16)
    prompts = [Prompt(str(i), "abcdefghij"[: 1 + i % 9], "test") for i in range(12)]
    sampling = Sampling(samples_per_prompt=4, max_new_tokens=30)
    order = [at for at, _ in sampler.stream(prompts, seed=2, sampling=sampling)]
    assert sorted(order) == list(range(12))
    assert order[0] in range(4)  # of the first to be put in


def with_many_ends() -> Any:
    model = fixed(llama)
    model.generation_config.eos_token_id = list(range(1, 10))
    return model


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            table(np.random.default_rng(0).normal(size=(26, 26)), end=1),
            "Table does not use transformers' attention interface",
        ),
        (with_many_ends(), "the engine looks for at most 8 end tokens, it has 9"),
    ],
)
def test_a_model_it_cannot_run_is_named_and_sampled_all_the_same(model: Any, reason: str) -> None:
    sampling = Sampling(samples_per_prompt=2, max_new_tokens=5)
    sampler = GroupSampler(model, TOKENIZER)
    with pytest.warns(UserWarning, match=rf"does not run \w+: {reason}; sampling with"):
        found = sampler.sample(PROMPTS, seed=0, sampling=sampling)
    assert sampler.reason == reason
    assert rows(found) == rows(
        ModelSampler(model, TOKENIZER).sample(PROMPTS, seed=0, sampling=sampling)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        sampler.sample(PROMPTS, seed=0, sampling=sampling)


def with_attention(change: Any) -> Any:
    """A model one of whose attention layers is called through `change(plain, hidden, **kwargs)`."""
    model = fixed(llama)
    attention: Any = model.model.layers[1].self_attn
    plain = type(attention).forward

    class Odd(type(attention)):  # type: ignore[misc]
        def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            return change(partial(plain, self, hidden_states, *args), hidden_states, **kwargs)

    attention.__class__ = Odd
    return model


def test_a_model_that_attends_otherwise_than_it_says_is_found_out() -> None:
    def adds(plain: Any, hidden: torch.Tensor, **kwargs: Any) -> Any:
        out, weights = plain(**kwargs)
        return out + 3.0 * (hidden.shape[1] > 1), weights  # by how many tokens it is given

    sampler = GroupSampler(with_attention(adds), TOKENIZER)
    with (
        pytest.warns(UserWarning, match="log-probs are .* away from those of a plain forward"),
        pytest.warns(UserWarning, match="a pass over the whole text"),
    ):
        sampler.sample(PROMPTS, seed=0, sampling=Sampling(samples_per_prompt=2, max_new_tokens=9))
    assert sampler.reason is not None


def test_a_first_call_that_fails_on_the_way_ends_in_the_present_sampler() -> None:
    def fails(plain: Any, hidden: torch.Tensor, **kwargs: Any) -> Any:
        if hidden.shape[1] == 1 and kwargs.get("past_key_values") is None:
            raise RuntimeError("no kernel image is available\nfor this device")
        return plain(**kwargs)

    model = with_attention(fails)
    sampling = Sampling(samples_per_prompt=2, max_new_tokens=9)
    with pytest.warns(UserWarning, match=r"first call failed \(RuntimeError: no kernel image is"):
        found = GroupSampler(model, TOKENIZER).sample(PROMPTS, seed=0, sampling=sampling)
    expected = ModelSampler(model, TOKENIZER).sample(PROMPTS, seed=0, sampling=sampling)
    assert rows(found) == rows(expected)


def test_a_model_that_cannot_run_is_an_error_that_names_what_stands_in_the_way() -> None:
    from transformers import BertConfig, BertLMHeadModel, MambaConfig, MambaForCausalLM

    shape: dict[str, Any] = {
        "vocab_size": 60,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bert = BertLMHeadModel(BertConfig(**shape, intermediate_size=48)).eval()
        mamba = MambaForCausalLM(MambaConfig(**shape)).eval()
    with pytest.raises(CannotRun, match="it does not attend causally"):
        EngineModel(bert, torch.float32)
    with pytest.raises(CannotRun, match="attention interface"):
        EngineModel(mamba, torch.float32)


def test_weights_are_shared_where_the_dtype_allows_and_cast_where_not() -> None:
    model = fixed(llama)
    same, cast = EngineModel(model, torch.float32), EngineModel(model, torch.bfloat16)
    assert not same.copies
    assert all(p.requires_grad for p in model.parameters())
    trained = {name for name, p in cast.model.named_parameters() if p.requires_grad}
    assert trained == {"model.embed_tokens.weight"}  # looked up in float32, as the learner does
    assert {id(p) for p in same.model.parameters()} == {id(p) for p in model.parameters()}
    assert cast.copies
    assert cast.loads == 1
    assert sum(isinstance(m, JoinedLinear) for m in cast.model.modules()) == 3 * 5
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.5)
    cast.load_weights(model)
    ids = torch.arange(6)[None]
    with cast.plain_attention(), torch.no_grad():
        found = cast.forward(ids, ids).float()
        expected = model(ids).logits[:, -1]
    assert float((found - expected).norm() / expected.norm()) < 0.05
    assert cast.loads == 2


@pytest.mark.parametrize("tied", [True, False])
def test_in_bfloat16_only_factors_of_products_are(tied: bool) -> None:
    """Embedding, gains and logits stay float32, and the embedding is there once."""
    model = fixed(lambda: llama(tie_word_embeddings=tied))
    engine_model = EngineModel(model, torch.bfloat16)
    kinds = {name: p.dtype for name, p in engine_model.model.named_parameters()}
    float32 = {name for name, kind in kinds.items() if kind == torch.float32}
    assert float32 == {n for n in kinds if "norm" in n} | {"model.embed_tokens.weight"}
    assert kinds["lm_head.weight"] == torch.bfloat16
    assert engine_model.model.get_input_embeddings().weight is model.get_input_embeddings().weight
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.5)
    engine_model.load_weights(model)
    ids = torch.arange(6)[None]
    with torch.no_grad():
        found = engine_model._plain_logits(ids[0])[-1:]
        expected = model(ids).logits[:, -1]
    assert found.dtype == torch.float32
    assert not torch.equal(found, found.bfloat16().float())
    assert float((found - expected).norm() / expected.norm()) < 0.05
    copied = EngineModel(
        model, torch.bfloat16, copied=True
    )  # where tensors are others at each call
    assert copied.model.get_input_embeddings().weight.dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["Qwen2", "Gemma"], ids=["fused layers", "the model's own"])
def test_in_bfloat16_sampler_and_learner_are_nearer_to_each_other_than_to_float32(
    name: str,
) -> None:
    """Both round in the same places, so most of the rounding cancels."""
    sampling = Sampling(samples_per_prompt=8, max_new_tokens=30)
    model = fixed(lambda: family(name))
    groups = GroupSampler(model, TOKENIZER, precision="bf16").sample(
        PROMPTS, seed=1, sampling=sampling
    )
    learner = Learner(model, precision="bf16", layout="padded")
    learner.passes.scorer.fused = learner.passes.scorer.can_fuse  # float32 logits, as on a GPU
    learned = np.concatenate(sum(learner.log_probs(groups).tokens, ()))
    exact = Learner(fixed(lambda: family(name)), layout="padded").log_probs(groups)
    noise = np.abs(learned - np.concatenate(sum(exact.tokens, ()))).mean()
    assert np.abs(log_probs(groups) - learned).mean() < 0.75 * noise  # 1.4 with other places


@pytest.mark.parametrize("targets", [["q_proj", "v_proj"], "all-linear"])
@pytest.mark.parametrize("rank", [2, 5])
def test_lora_is_sampled_with_its_adapters_beside_shared_weights(targets: Any, rank: int) -> None:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=rank, target_modules=targets, init_lora_weights=False)
    model: Any = get_peft_model(fixed(llama), config)
    ids = torch.arange(6)[None]
    before = model(ids).logits
    sampling = Sampling(samples_per_prompt=2, max_new_tokens=12)
    sampler = GroupSampler(model, TOKENIZER)
    for _ in range(2):
        expected = ModelSampler(model, TOKENIZER).sample(PROMPTS, seed=0, sampling=sampling)
        assert rows(sampler.sample(PROMPTS, seed=0, sampling=sampling)) == rows(expected)
        if _ == 0:
            assert torch.equal(model(ids).logits, before)  # the policy computes as it did
        with torch.no_grad():
            for name, p in model.named_parameters():
                if "lora" in name:
                    p.mul_(1.3)
    engine_model = sampler.resident.engine_model
    assert engine_model is not None
    assert engine_model.fused_model is not None
    assert not engine_model.copies
    frozen = {p.data_ptr() for name, p in model.named_parameters() if "lora" not in name}
    layer: Any = engine_model.fused_model.layers[0]
    assert {t.data_ptr() for t in (layer.qkv, layer.gate_up, layer.out, layer.down)} <= frozen
    other = GroupSampler(model, TOKENIZER)  # another sampler of the policy, and the first again
    expected = ModelSampler(model, TOKENIZER).sample(PROMPTS, seed=1, sampling=sampling)
    for each in (other, sampler):
        assert rows(each.sample(PROMPTS, seed=1, sampling=sampling)) == rows(expected)


def test_a_change_below_the_rounding_of_a_weight_is_sampled() -> None:
    """Weights of 1 and −1 in turns, and .001 more on each: in bfloat16 the sums are 1 and −1."""
    linear = torch.nn.Linear(64, 3, bias=False, dtype=torch.bfloat16).requires_grad_(False)
    linear.weight.copy_(torch.tensor([1.0, -1.0] * 32))
    adapted = AdaptedLinear(linear, 1, torch.bfloat16)
    adapted.adapter[0].fill_(1.0)
    adapted.adapter[1].fill_(1e-3)
    x = torch.ones(1, 64, dtype=torch.bfloat16)
    assert torch.equal((linear.weight.float() + 1e-3).bfloat16(), linear.weight)
    assert float(linear(x)[0, 0]) == 0.0
    assert adapted(x).float().numpy() == pytest.approx(0.064, rel=0.01)


def test_adapters_that_are_no_plain_products_are_merged_or_left_to_transformers() -> None:
    from peft import LoHaConfig, LoraConfig, get_peft_model

    sampling = Sampling(samples_per_prompt=2, max_new_tokens=8)
    loha: Any = get_peft_model(
        fixed(llama), LoHaConfig(r=2, target_modules=["q_proj", "down_proj"])
    )
    with torch.no_grad():
        for name, p in loha.named_parameters():
            if "hada" in name:
                p.copy_(torch.randn_like(p) * 0.5)
    expected = ModelSampler(loha, TOKENIZER).sample(PROMPTS, seed=0, sampling=sampling)
    sampler = GroupSampler(loha, TOKENIZER)
    assert rows(sampler.sample(PROMPTS, seed=0, sampling=sampling)) == rows(expected)
    assert sampler.resident.engine_model is not None
    assert sampler.resident.engine_model.copies
    dora: Any = get_peft_model(
        fixed(llama), LoraConfig(r=2, use_dora=True, target_modules=["q_proj"])
    )
    with pytest.raises(CannotRun, match="its adapters are DoRA or another variant of LoRA"):
        EngineModel(dora, torch.float32)


def test_layers_compile_once_for_all_of_them_without_a_break(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    monkeypatch.setattr(engine_model, "fused_model", lambda *parts: None)
    sampler = GroupSampler(fixed(llama), TOKENIZER, precision="bf16")
    sampling = Sampling(samples_per_prompt=4, max_new_tokens=2)
    sampler.sample(PROMPTS, seed=0, sampling=sampling)
    engine = sampler.engine
    assert engine is not None
    counter = CompileCounterWithBackend("eager")
    for layer in engine.model.decoder_layers:
        layer._compiled_call_impl = torch.compile(layer._call_impl, backend=counter, fullgraph=True)
    engine.state.slots[SlotField.ENDED] = 1
    for width in (32, 16, 24):
        engine.steps.step(width, sampling)
    assert counter.frame_count == 2  # the first width, and one for all others


def test_the_plan_follows_the_call_and_the_card() -> None:
    common: dict[str, Any] = {
        "token_bytes": 1000, "samples": 16, "new_tokens": 100, "lengths": [50] * 32,
        "max_rows": 2048,
    }  # fmt: skip
    plan = make_plan(total_bytes=1e9, **common)
    assert plan.slots == 512
    assert plan.own_tokens >= 51_200
    assert plan.prefix_tokens >= 32 * 50
    assert plan == make_plan(total_bytes=1e9, **common)
    assert plan.holds(plan)
    assert plan.holds(make_plan(total_bytes=1e9, **common | {"lengths": [60] * 30}))
    for larger in ({"new_tokens": 400}, {"samples": 64}, {"lengths": [40_000]}):
        needed = make_plan(total_bytes=1e9, **common | larger)
        assert not plan.holds(needed)
        room = room_for(1000, 1e9)
        both = plan.joined(needed, room)
        assert both.holds(plan)
        assert both.holds(needed)
        assert both.own_tokens + both.prefix_tokens <= room
    turns = make_plan(total_bytes=1e9, **common | {"max_rows": 128}, several_turns=True)
    assert (turns.slots, turns.own_tokens) == (128, 512 * 100)  # keys of rows without a slot too
    turns = make_plan(total_bytes=1e8, **common, several_turns=True)
    assert 1.4 <= turns.own_tokens / (turns.slots * 100) <= 1.7
    for total in (1e6, 3e6, 1e7, 1e8):
        tight = make_plan(total_bytes=total, **common)
        assert (tight.own_tokens + tight.prefix_tokens) * 1000 <= 0.35 * total + 1000
        assert tight.slots * 100 <= tight.own_tokens


def test_tiles_hold_every_active_row_once_with_its_siblings() -> None:
    draw = np.random.default_rng(0)
    for _ in range(50):
        made = SlotTable(40, rows_per_tile=4, places=60)
        slots = draw.permutation(40)[: draw.integers(1, 40)]
        prompt = draw.integers(0, 6, len(slots))
        made.admit(slots, sequence=slots, prompt=prompt, start=10 * prompt, length=prompt + 1,
                   last_token=np.full(len(slots), 3), place=59 - slots)  # fmt: skip
        made.fields[SlotField.ENDED, draw.permutation(40)[:10]] = 1
        tiles = made.tiles()
        found = []
        for start, length, *places in tiles.tolist():
            own = [slot for slot in places if slot >= 0]
            assert places == own + [-1] * (4 - len(own))
            assert {made.prompt[slot] for slot in own} <= {start // 10}
            assert not own or length == start // 10 + 1
            found += own
        assert sorted(found) == made.active().tolist()
        width = 16
        if len(made.active()) <= width:
            before = sorted(made.fields[SlotField.SEQUENCE, made.active()].tolist())
            homes = dict(
                zip(
                    *made.fields[[SlotField.SEQUENCE, SlotField.KV_SLOT]][:, made.active()].tolist()
                )
            )
            made.compact(width)
            after = made.fields[[SlotField.SEQUENCE, SlotField.KV_SLOT]][:, made.active()].tolist()
            assert dict(zip(*after)) == homes  # their keys were not moved
            assert sorted(made.fields[SlotField.SEQUENCE, made.active()].tolist()) == before
            assert made.active().max(initial=0) < width
