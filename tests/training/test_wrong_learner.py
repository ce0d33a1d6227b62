"""A learner or a sampler that computes the wrong thing stops the run and says why."""

import json
from typing import ClassVar

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from bestofk.agreement.one_model import check_output, unsound_weight
from bestofk.agreement.tolerances import SAMPLER
from bestofk.cli import main
from bestofk.config import read
from bestofk.learning import Learner
from bestofk.models import Policy, load, save, tiny
from bestofk.runs import read_metrics
from bestofk.sampling.prompts import encode
from bestofk.training import context as context_module
from bestofk.training.resolve import resolve
from bestofk.training.train import train
from bestofk.types import Prompt

NO_EVALUATION = {"every": 0}


class ForgetfulConfig(LlamaConfig):
    model_type = "forgetful"


class ForgetfulModel(LlamaForCausalLM):
    """Decoding with a cache gives sharper logits than one pass over the text, after some calls."""

    config_class = ForgetfulConfig
    sound_calls: ClassVar[int] = 0
    """Calls with a cache before it goes wrong."""

    def forward(self, *args, past_key_values=None, **kwargs):
        out = super().forward(*args, past_key_values=past_key_values, **kwargs)
        if past_key_values is not None and past_key_values.get_seq_length() > 20:
            ForgetfulModel.sound_calls -= 1
            if ForgetfulModel.sound_calls < 0:
                out.logits = out.logits * 3.0
        return out


def saved(folder):
    """A small model of this class with random weights, in a folder."""
    AutoConfig.register("forgetful", ForgetfulConfig, exist_ok=True)
    AutoModelForCausalLM.register(ForgetfulConfig, ForgetfulModel, exist_ok=True)
    plain = tiny.untrained(hidden=32, layers=2, heads=2, inner=64, seed=1)
    model = ForgetfulModel(ForgetfulConfig(**plain.config.to_dict() | {"model_type": "forgetful"}))
    model.load_state_dict(plain.state_dict())
    with torch.no_grad():
        model.lm_head.weight.mul_(20)  # logits that differ
    save(Policy(model, tiny.tokenizer()), folder)
    return folder


def forgetful(tmp_path, sound_calls):
    ForgetfulModel.sound_calls = sound_calls
    return {"path": str(saved(tmp_path / "forgetful"))}


def test_a_model_whose_cache_is_wrong_is_sampled_without_it(recipe, tmp_path):
    config = read(
        recipe(
            model=forgetful(tmp_path, 0),
            sampling={"max_new_tokens": 12},
            evaluation=NO_EVALUATION,
            run={"steps": 1},
        )
    )
    with pytest.warns(UserWarning, match="ForgetfulModel cannot be decoded with transformers'"):
        train(resolve(config))
    assert read_metrics(tmp_path / "run")[0]["sampler_gap_mean"] < 1e-4


def test_a_gap_that_opens_later_stops_the_run_with_cause_and_batch(recipe, tmp_path, capsys):
    path = recipe(
        model=forgetful(tmp_path, 24),
        sampling={"max_new_tokens": 12},
        evaluation=NO_EVALUATION,
        run={"checkpoint_every": 1},
        optimizer={"learning_rate": 1e-4},
    )
    assert main(["train", str(path)]) == 2
    said = capsys.readouterr().err
    done = [line["step"] for line in read_metrics(tmp_path / "run")]
    assert 1 <= len(done) < 7
    step = done[-1] + 1
    assert f"step {step}: the sampler's log-probs are" in said
    assert "ForgetfulModel decodes step by step with its cache and gets other logits" in said
    assert "raise sampling.advanced.agreement" in said
    assert (tmp_path / "run" / "failed" / f"step-{step:06d}" / "batch.jsonl").exists()
    kept = [path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*")]
    assert max(kept) == f"step-{done[-1]:06d}"  # none of the step that was wrong


def test_the_limit_is_a_setting_of_every_engine(recipe, tmp_path):
    wide = {"max_new_tokens": 12, "advanced": {"agreement": 50.0}}
    model, run = forgetful(tmp_path, 12), {"steps": 4}
    config = read(recipe(model=model, sampling=wide, run=run, evaluation=NO_EVALUATION))
    assert train(resolve(config)).step == 4
    assert read_metrics(tmp_path / "run")[-1]["sampler_gap_mean"] > 1e-3


def test_the_limits_leave_room_for_rounding(recipe, tmp_path):
    model = {"path": "tiny-countdown", "precision": "bf16"}
    config = read(
        recipe(model=model, sampling={"max_new_tokens": 24}, evaluation=NO_EVALUATION,
               run={"steps": 2}, optimizer={"learning_rate": 1e-3})
    )  # fmt: skip
    train(resolve(config))
    gaps = [line["sampler_gap_mean"] for line in read_metrics(tmp_path / "run")]
    assert max(gaps) < SAMPLER.bf16 / 4


def test_a_layout_that_leaves_something_out_is_named_as_the_cause(recipe, tmp_path, monkeypatch):
    """The packed layout is given a wrong picture of which tokens see which."""
    from bestofk.learning import attention
    from bestofk.learning import learner as module
    from bestofk.training.session import open_session

    config = read(recipe(model={"path": "tiny-countdown"}, sampling={"max_new_tokens": 12}))
    with open_session(resolve(config)) as session:
        prompt = session.context.prompt_at(0)
        agreement = session.rollouts.agreement
        gap, groups = agreement.probe(prompt)  # it compares the layouts once, and they agree
        assert gap < 1e-4
        plain = attention.group_attention

        def blind(module, query, key, value, mask, segments=None, **kwargs):
            scale = 1.0 if segments is None else 0.0  # all keys look alike where rows are packed
            return plain(module, query * scale, key, value, mask, segments=segments, **kwargs)

        attention.AttentionInterface.register(attention.BACKEND, blind)
        try:
            cause = agreement.likely_cause(groups, 1.0, float("nan"))
        finally:
            attention.AttentionInterface.register(attention.BACKEND, plain)
    assert "the learner's packed layout: completions scored one by one agree" in cause
    assert module.Learner is type(session.context.learner)


def test_weights_that_blew_up_never_end_in_done(recipe, tmp_path, capsys):
    path = recipe(evaluation=NO_EVALUATION, run={"steps": 1}, optimizer={"warmup_steps": 0})
    assert main(["train", str(path), "--optimizer.learning-rate", "3e38"]) == 2
    told = capsys.readouterr()
    assert "done" not in told.out
    assert "optimizer.learning_rate" in told.err
    assert not (tmp_path / "run" / "final").exists()


def test_a_weight_that_is_not_finite_is_found_by_name(small_model):
    model = load(small_model).model
    assert unsound_weight(model) is None
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 4] = float("inf")
    assert unsound_weight(model) == "model.layers.1.mlp.up_proj.weight"


def test_a_model_whose_logits_are_not_finite_is_not_saved(small_model):
    policy, prompt = load(small_model), Prompt("p", "1 2 = 3:", "countdown", {})
    check_output(policy.model, encode(policy.tokenizer, prompt), 3)
    with torch.no_grad():
        policy.model.model.norm.weight.fill_(3e38)
    assert unsound_weight(policy.model) is None
    with pytest.raises(ValueError, match="after step 3 the model gives logits that are NaN or inf"):
        check_output(policy.model, encode(policy.tokenizer, prompt), 3)


def context_model(tmp_path, length):
    from transformers import GPT2Config, GPT2LMHeadModel

    small = tiny.tokenizer()
    facts = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": length}
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(small), eos_token_id=small.eos_token_id, bos_token_id=None, **facts
        )
    )
    save(Policy(model, small), tmp_path / "gpt2")
    return str(tmp_path / "gpt2")


def test_prompt_and_completion_must_fit_into_the_model_s_context(recipe, tmp_path):
    path = context_model(tmp_path, 40)
    fits = read(recipe(model={"path": path}, run={"steps": 1}))
    assert train(resolve(fits)).step == 1
    long = read(recipe(model={"path": path}, sampling={"max_new_tokens": 32},
                       run={"dir": str(tmp_path / "long")}))  # fmt: skip
    said = r"has \d+ tokens, sampling.max_new_tokens = 32, and the model has positions for 40"
    with pytest.raises(ValueError, match=said):
        train(resolve(long))
    assert not (tmp_path / "long" / "metrics.jsonl").exists()


def test_the_prompts_of_every_step_and_of_the_evaluation_are_counted(recipe, tmp_path):
    """One long prompt among the data: in the last row to be trained on, or in the evaluation."""
    for name, where in (("late", "train"), ("shown", "validation")):
        files = {}
        for split in ("train", "validation"):
            texts = ["1+1="] * 7 + ["1+" * 30 if split == where else "2+2="]
            rows = [{"prompt": f"{i}{text}", "a": "2"} for i, text in enumerate(texts)]
            file = tmp_path / f"{name}-{split}.jsonl"
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
            files[split] = str(file)
        task = {"name": "dataset", "verifier": "training_judges:digits",
                "options": {**files, "answer": "a", "style": "text"}}  # fmt: skip
        config = read(
            recipe(model={"path": context_model(tmp_path, 40)}, task=task,
                   sampling={"prompts_per_step": 2}, evaluation={"prompts": 8},
                   run={"steps": 4, "dir": str(tmp_path / name)})
        )  # fmt: skip
        with pytest.raises(ValueError, match=r"has 6\d tokens.*take shorter prompts"):
            train(resolve(config))
        assert not (tmp_path / name / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["--sampling.samples-per-prompt", "1000000000000"],
            "sampling.samples_per_prompt is at most 1e+07",
        ),
        (["--sampling.max-new-tokens", "1000000000000"], "sampling.max_new_tokens is at most"),
        (["--evaluation.samples-per-prompt", "1000000000000"], "evaluation.samples_per_prompt is"),
        (["--objective-options.truncate", "0"], "truncate is above 0 in training, got 0"),
        (["--objective-options.truncate=-0.5"], "truncate is above 0 in training, got -0.5"),
        (["--model.path", "no-such-owner/no-such-model"], "cannot be reached"),
    ],
)
def test_settings_that_cannot_work_are_errors_before_anything_is_loaded(
    recipe, tmp_path, capsys, monkeypatch, flags, said
):
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # nobody is there
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert main(["train", str(recipe()), *flags]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "pip install" not in told
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_folder_that_cannot_be_written_is_named_with_the_way_out(recipe, tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    for folder in ("/proc/nobody/writes/here", str(tmp_path / "file" / "run")):
        assert main(["train", str(recipe()), "--run.dir", folder]) == 2
        told = capsys.readouterr().err
        assert f"run.dir = {folder!r} cannot be written" in told
        assert "Errno" not in told


@pytest.mark.parametrize(
    ("phase", "way_out"),
    [("learn", r"tokens_per_micro_batch \(now 16,384\)"), ("sample", "advanced.max_rows")],
)
def test_a_full_gpu_names_the_phase_and_what_takes_less(phase: str, way_out: str) -> None:
    said = "CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 139 GiB"
    with (
        pytest.raises(ValueError, match=rf"full \({phase}: CUDA.*512.00 MiB\): lower.*{way_out}"),
        context_module.memory_named(phase, Learner(load("tiny-maze").model)),
    ):
        raise torch.OutOfMemoryError(said)
