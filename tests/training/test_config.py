"""Recipes and flags: what is read is what was written, and mistakes are answered with a way out."""

import dataclasses
import re
import tomllib
from typing import Literal, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bestofk.cli import main as command
from bestofk.cli._recipe_flags import _kinds, _plain
from bestofk.cli.train_command import override, split
from bestofk.config import (
    OPTION_FIELDS,
    Config,
    from_dict,
    leaves,
    literal,
    read,
    replaced,
    to_toml,
)
from bestofk.learning import Loss, Optimisation
from bestofk.moved_keys import MOVED
from bestofk.rare_settings import (
    EngineOptions,
    ModelOptions,
    RunOptions,
    engine_options,
    model_options,
    run_options,
)
from bestofk.training.checks import cautions, check, check_resumed, claim_of_run
from bestofk.training.cost import group_lines

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
OPTIONS = st.dictionaries(
    st.from_regex(r"[a-z_]{1,8}", fullmatch=True),
    st.one_of(TEXT, st.integers(), st.booleans(), st.floats(allow_nan=False), st.lists(TEXT)),
    max_size=4,
)


@given(TEXT, OPTIONS, st.floats(1e-12, 1.0), st.lists(TEXT, max_size=4))
def test_a_config_written_as_toml_is_read_back_the_same(text, options, rate, words):
    config = Config()
    for name, value in [
        ("model.path", text),
        ("task.options", options),
        ("optimizer.learning_rate", rate),
        ("run.trackers", tuple(words)),
        ("task.verifier", None),
    ]:
        config = replaced(config, name, value)
    assert from_dict(Config, tomllib.loads(to_toml(config))) == config


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[sampling]\nsamples_per_promt = 3", "did you mean 'samples_per_prompt'"),
        ("[samplng]\nsamples_per_prompt = 3", "did you mean 'sampling'"),
        (
            "[loss]\nname = 'exactly'",
            "loss.name is one of exact, clipped, gspo, got 'exactly'; did you",
        ),
        ("[run]\nsteps = 'ten'", "run.steps is of kind int, got 'ten'"),
        ("[run]\nsteps = true", "run.steps is of kind int, got True"),
        ("[run]\nsteps = 1.5", "run.steps is of kind int, got 1.5"),
        ("run = 3", "run is a section"),
        ("[loss]\nclip = 3", "loss.clip is a list"),
        ("[loss]\nclip = ['a', 1]", "loss.clip is of kind float"),
        ("[loss]\nclip = [1.0]", "loss.clip is a list of 2 numbers"),
        ("[optimizer]\nlearning_rate = inf", "optimizer.learning_rate is a finite number"),
        ("objective = ", "is not TOML"),
    ],
)
def test_a_mistake_in_a_recipe_is_named_with_the_way_out(tmp_path, text, told):
    file = tmp_path / "run.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=re.escape(told)) as caught:
        read(file)
    assert str(file) in str(caught.value)


def test_flags_override_a_recipe_and_options_are_open(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('objective = "max@4"\n[task.options]\nnumbers = 3\nstyle = "compact"\n')
    flags = "--objective max@16 --run.dir runs/a --task.options.numbers 5 --loss.clip 0.1 0.3"
    words = split([*flags.split(), str(file), "--task.options.low=2"])
    config = override(read(file), words)
    assert words.recipe == str(file)
    assert config.objective == "max@16"
    assert config.run.dir == "runs/a"
    assert config.loss.clip == (0.1, 0.3)
    assert config.task.options == {"numbers": 5, "style": "compact", "low": 2}
    untouched = dict(leaves(Config()))
    differing = {name for name, value in leaves(config) if untouched.get(name) != value}
    assert differing == {
        "objective", "run.dir", "loss.clip", "task.options.numbers",
        "task.options.style", "task.options.low",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--sampling.samples-per-promt 8", "did you mean --sampling.samples_per_prompt? bestofk"),
        ("--stepz 8", "unknown setting --stepz; did you mean --run.steps? bestofk train --help-al"),
        ("--samples-per-prompt 8", "--sampling.samples_per_prompt or --evaluation.samples_per_pr"),
        ("--overlong-tokens 8", "did you mean --run.options.overlong_tokens?"),
        ("--model Qwen/Qwen3-0.6B", "model is a section, write --model.path;"),
        ("--dry_rn", "did you mean --dry-run?"),
        (
            "--nothing.like.it 3",
            "unknown setting --nothing.like.it; bestofk train --help-all lists",
        ),
        ("--run.steps many", "--run.steps takes a whole number, got 'many'"),
        ("--optimizer.learning-rate fast", "--optimizer.learning-rate takes a number, got 'fast'"),
        ("--sampling.engine vlm", "got 'vlm'; did you mean 'vllm'? have auto, group, transformers"),
        ("--run.dir", "--run.dir needs a value"),
        ("--run.dir --run.steps 3", "--run.dir needs a value"),
        ("--loss.clip 0.2 --run.steps 3", "--loss.clip needs 2 values, got 0.2"),
        ("--run.steps 0", "run.steps is at least 1, got 0"),
        ("--task.options 3", "write --task.options.NAME value"),
        ("--json=3", "--json takes no value, got '3'"),
        ("maze-tiny", "unexpected argument 'maze-tiny'; the recipe is countdown-tiny"),
        ("-n 3", "unknown flag -n"),
    ],
)
def test_a_mistake_in_the_flags_is_one_line_with_the_way_out(flags, told, capsys):
    assert command(["train", "countdown-tiny", *flags.split()]) == 2
    shown = capsys.readouterr()
    assert told in shown.err
    assert shown.err.startswith("bestofk train: ")
    assert shown.err.count("\n") == 1
    assert not shown.out


OTHER = {int: 3, float: 0.25, str: "other", bool: True}


def test_every_setting_can_be_given_by_a_flag():
    """Each setting gets a value that is not its default, and reads back as exactly that."""
    wanted, flags = dict[str, object](), list[str]()
    for name, default in leaves(Config()):
        kind = _kinds()[name]
        plain = _plain(kind)[0]
        if get_origin(plain) is Literal:
            value = next(each for each in get_args(plain) if each != default)
        elif get_origin(plain) is tuple:
            inside = get_args(plain)
            count = 3 if inside[-1] is Ellipsis else len(inside)
            value = (OTHER[_plain(inside[0])[0]],) * count
        else:
            value = OTHER[plain]
        assert value != default, name
        wanted[name] = value
        words = [str(each) for each in value] if isinstance(value, tuple) else [str(value)]
        flags += [f"--{name.replace('_', '-')}", *([] if value is True else words)]
    assert dict(leaves(override(Config(), split(flags)))) == wanted


def test_a_flag_can_take_a_value_away_and_turn_a_setting_off():
    config = changed(off_policy__correct_sampler=True, off_policy__trust_region=(1.0, 1.0))
    for off in ("--off_policy.correct_sampler=false", "--off-policy.no-correct-sampler"):
        found = override(config, split([off, "--off-policy.trust-region", "None"]))
        assert not found.off_policy.correct_sampler
        assert found.off_policy.trust_region is None


def test_the_recipe_may_stand_after_the_flags():
    words = split(["--run.steps", "3", "--dry-run", "countdown-tiny", "--loss.clip", "0.1", "0.3"])
    assert (words.recipe, words.dry_run) == ("countdown-tiny", True)
    assert words.settings == {"run.steps": 3, "loss.clip": [0.1, 0.3]}
    words = split(["--run.trackers", "tensorboard", "wandb", "own.toml"])
    assert words.recipe == "own.toml"
    assert words.settings == {"run.trackers": ["tensorboard", "wandb"]}


@given(st.one_of(st.integers(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False)))
def test_flag_values_of_open_options_are_toml(value):
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    assert literal(text) == value
    assert literal("compact") == "compact"
    assert literal("{not an object") == "{not an object"


def changed(**values):
    config = Config()
    for name, value in values.items():
        config = replaced(config, name.replace("__", "."), value)
    return config


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (changed(objective="max@16"), "max@16 needs more than 16 samples per prompt, got 16"),
        (changed(objective="mx@3"), "unknown objective 'mx'"),
        (changed(sampling__top_p=0.9), "whole distribution"),
        (changed(sampling__top_k=5), "whole distribution"),
        (changed(loss__name="clipped", sampling__top_p=0.9), "correct_sampler"),
        (changed(loss__name="clipped", objective_options={"off_policy": "exact"}), "never mixed"),
        (changed(objective="grpo", off_policy__passes=3), "no exact off-policy form"),
        (changed(off_policy__mini_batches=3), "3 does not divide"),
        (changed(sampling__temperature=0.0), "above 0 in training"),
        (changed(model__options={"lora_alpha": 4.0}), "set model.lora_rank"),
        (changed(run__options={"keep_lst": 3}), "did you mean 'keep_last'"),
        (changed(run__options={"best_by": "max@3"}), "run.options.best_by is one of"),
        (changed(task__options={"api_key": "x"}), "looks like a secret"),
        (changed(objective="passk-training@4:adaptive", sampling__refill=1), "refill"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_before_anything_is_loaded(config, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        check(config)


@pytest.mark.parametrize(
    "config",
    [
        changed(objective="grpo", loss__name="clipped", off_policy__passes=3),
        changed(objective="grpo"),
        changed(objective="max@8", off_policy__passes=2, off_policy__mini_batches=4),
        changed(objective="max@8/60%/mean"),
        changed(loss__name="clipped", sampling__top_p=0.9, off_policy__correct_sampler=True),
    ],
)
def test_what_can_work_is_accepted(config):
    assert check(config).text == config.objective


def test_a_resumed_run_may_change_only_what_no_step_depended_on():
    allowed = changed(run__steps=999, run__options={"keep_last": 7}, run__dir="elsewhere")
    check_resumed(Config(), allowed)
    with pytest.raises(ValueError, match=r"optimizer.learning_rate: 0.0001 → 0.5"):
        check_resumed(Config(), changed(optimizer__learning_rate=0.5))
    with pytest.raises(ValueError, match=r"task.options.numbers: None → 3"):
        check_resumed(Config(), changed(task__options={"numbers": 3}))
    cosine = changed(optimizer__schedule="cosine")
    with pytest.raises(ValueError, match=r"run\.steps: 200 → 300"):
        check_resumed(cosine, replaced(cosine, "run.steps", 300))
    anneal = changed(objective="max@8..1")
    with pytest.raises(ValueError, match=r"run\.steps: 200 → 300"):
        check_resumed(anneal, replaced(anneal, "run.steps", 300))


def test_every_field_has_a_default_so_that_a_recipe_states_only_what_matters():
    assert all(
        field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        for section in (Config, *(type(value) for value in vars(Config()).values()))
        if dataclasses.is_dataclass(section)
        for field in dataclasses.fields(section)
    )


BOUNDS = [
    ({"run": {"steps": 0}}, "run.steps is at least 1, got 0"),
    ({"optimizer": {"learning_rate": 0.0}}, "optimizer.learning_rate is above 0, got 0"),
    ({"sampling": {"top_p": 0.0}}, "sampling.top_p is above 0 and at most 1, got 0"),
    ({"loss": {"clip": [0.1, -1.0]}}, "loss.clip is 0 or more, got -1"),
    ({"off_policy": {"trust_region": [0.1, -1.0]}}, "off_policy.trust_region is 0 or more, got -1"),
    ({"loss": {"normaliser": "grpo"}}, "loss: the exact loss does not accept a length normaliser"),
]


@pytest.mark.parametrize(("stated", "told"), BOUNDS)
def test_bounds_are_checked_where_a_section_is_made(stated, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        from_dict(Config, stated)


EARLIER = {
    "objective": "max@4",
    "model": {"path": "m", "revision": "main", "lora_rank": 2, "lora_alpha": 4.0,
              "gradient_checkpointing": True},
    "task": {"name": "maze", "split": "train", "unscored_share": 0.05},
    "sampling": {"batch_size": 64, "samples_per_prompt": 8},
    "loss": {"name": "clipped", "ratio": "sequence", "clip_low": 0.1, "clip_high": 0.28},
    "off_policy": {"passes": 2, "truncate": 1.5, "form": "none", "self_normalise": False},
    "optimiser": {"learning_rate": 1e-3, "beta1": 0.8, "beta2": 0.9, "tokens_per_micro_batch": 99,
                  "stop_grad_norm": 7.0},
    "evaluation": {"ks": [1, 4], "metric": "max@4", "samples_per_prompt": 4},
    "run": {"keep_last": 3, "keep_best": False, "fsdp": True, "samples_megabytes": 2.0},
}  # fmt: skip


def test_keys_of_earlier_versions_are_accepted_with_the_new_place_named():
    with pytest.warns(FutureWarning) as caught:
        config = from_dict(Config, EARLIER)
    told = " ".join(str(warning.message) for warning in caught)
    for place in ("model.options.revision", "optimizer.learning_rate", "loss.clip", "gspo",
                  "objective_options.truncate", "run.options.keep_last", "power of"):  # fmt: skip
        assert place in told, place
    assert config.loss == Loss(name="gspo", clip=(0.1, 0.28))
    assert config.optimizer == Optimisation(learning_rate=1e-3, adam=(0.8, 0.9, 1e-8))
    assert config.objective_options == {
        "truncate": 1.5, "off_policy": "none", "self_normalise": False,
    }  # fmt: skip
    assert model_options(config) == ModelOptions(
        revision="main", lora_alpha=4.0, gradient_checkpointing=True, tokens_per_micro_batch=99,
        fsdp=True,
    )  # fmt: skip
    assert run_options(config) == RunOptions(
        unscored_share=0.05, best_by="max@4", keep_last=3, keep_best=False, samples_megabytes=2.0,
        stop_grad_norm=7.0,
    )  # fmt: skip
    assert engine_options(config).max_rows == 64
    check(config)


def test_every_earlier_key_has_a_place_that_exists():
    known = {name for name, _ in leaves(Config())}
    mappings = {"model.options": ModelOptions, "run.options": RunOptions,
                "sampling.engine_options": EngineOptions}  # fmt: skip
    for section, kind in mappings.items():
        known |= {f"{section}.{field.name}" for field in dataclasses.fields(kind)}
    known |= {
        f"objective_options.{n}" for n in ("off_policy", "truncate", "self_normalise", "clamp")
    }
    assert not set(MOVED.values()) - known
    assert not set(MOVED) & known


def test_the_config_stays_small():
    assert len(list(leaves(Config()))) + len(OPTION_FIELDS) < 50


@pytest.mark.parametrize(
    ("changes", "claim", "why"),
    [
        ({"objective": "max@4"}, "exact", "unbiased"),
        ({"objective": "max@4", "off_policy__mini_batches": 4}, "exact", "unbiased"),
        ({"objective": "max@4", "off_policy__passes": 2}, "biased", "passes = 2 reuse samples"),
        ({"objective": "max@4", "off_policy__mini_batches": 2,
          "off_policy__trust_region": (0.2, 0.2)}, "biased", "trust_region"),
        ({"objective": "max@4", "off_policy__mini_batches": 2,
          "objective_options": {"truncate": 1.0}}, "biased", "bounded or approximate"),
        ({"objective": "dr-grpo"}, "scaled", "constant multiple"),
        ({"objective": "grpo"}, "biased", "normalised"),
        ({"objective": "mean", "loss__name": "clipped"}, "biased", "clipped"),
    ],
)  # fmt: skip
def test_a_run_says_whether_its_update_is_exact_scaled_or_biased(changes, claim, why):
    config = changed(**changes)
    objective = check(config)
    stated, reason = claim_of_run(config, objective)
    assert (stated, why in reason) == (claim, True)
    noted = any(reason in note for note in cautions(config, objective))
    assert noted == (claim == "biased")
    assert f"expected update: {claim} ({reason})" in " ".join(group_lines(config, objective))


def test_a_warm_up_longer_than_the_run_is_mentioned():
    config = changed(optimizer__warmup_steps=999)
    assert any("999 and the run has 200" in note for note in cautions(config, check(config)))
    assert not any("warmup" in note for note in cautions(Config(), check(Config())))


def test_flags_of_earlier_versions_are_accepted_too():
    flags = "--optimiser.learning-rate 1 --loss.clip-high 0.28 --run.keep_last=5 --run.fsdp"
    with pytest.warns(FutureWarning) as caught:
        config = override(Config(), split(flags.split()))
    assert any("it is now optimizer.learning_rate" in str(w.message) for w in caught)
    assert config.optimizer.learning_rate == 1.0
    assert config.loss.clip == (0.2, 0.28)
    assert run_options(config).keep_last == 5
    assert model_options(config).fsdp
