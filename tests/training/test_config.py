"""Recipes and flags: what is read is what was written, and mistakes are answered with a way out."""

import dataclasses
import re
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bestofk.cli.train_command import main, override, split
from bestofk.config import Config, from_dict, leaves, literal, read, replaced, to_toml
from bestofk.training.checks import check, check_resumed

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
OPTIONS = st.dictionaries(
    st.from_regex(r"[a-z_]{1,8}", fullmatch=True),
    st.one_of(TEXT, st.integers(), st.booleans(), st.floats(allow_nan=False), st.lists(TEXT)),
    max_size=4,
)


@given(TEXT, OPTIONS, st.floats(1e-12, 1.0), st.lists(st.integers(1, 99), max_size=4))
def test_a_config_written_as_toml_is_read_back_the_same(text, options, rate, ks):
    config = Config()
    for name, value in [
        ("model.path", text),
        ("task.options", options),
        ("optimiser.learning_rate", rate),
        ("evaluation.ks", tuple(ks)),
        ("off_policy.truncate", None),
    ]:
        config = replaced(config, name, value)
    assert from_dict(Config, tomllib.loads(to_toml(config))) == config


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[sampling]\nsamples_per_promt = 3", "did you mean 'samples_per_prompt'"),
        ("[samplng]\nsamples_per_prompt = 3", "did you mean 'sampling'"),
        ("[loss]\nname = 'exactly'", "loss.name is one of exact, clipped, got 'exactly'; did you"),
        ("[run]\nsteps = 'ten'", "run.steps is of kind int, got 'ten'"),
        ("[run]\nsteps = true", "run.steps is of kind int, got True"),
        ("[run]\nsteps = 1.5", "run.steps is of kind int, got 1.5"),
        ("run = 3", "run is a section"),
        ("[evaluation]\nks = 3", "evaluation.ks is a list"),
        ("[evaluation]\nks = ['a']", "evaluation.ks is of kind int"),
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
    flags = "--objective max@16 --run.dir runs/a --task.options.numbers 5 --off-policy.truncate 2"
    words = split([*flags.split(), str(file), "--task.options.low=2"])
    config = override(read(file), words)
    assert words.recipe == str(file)
    assert config.objective == "max@16"
    assert config.run.dir == "runs/a"
    assert config.off_policy.truncate == 2.0
    assert config.task.options == {"numbers": 5, "style": "compact", "low": 2}
    untouched = dict(leaves(Config()))
    differing = {name for name, value in leaves(config) if untouched.get(name) != value}
    assert differing == {
        "objective", "run.dir", "off_policy.truncate", "task.options.numbers",
        "task.options.style", "task.options.low",
    }  # fmt: skip


def test_a_mistyped_flag_is_answered_with_the_right_one(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--sampling.samples-per-promt", "8"])
    assert caught.value.code == 2
    assert "--sampling.samples-per-prompt" in capsys.readouterr().err


@given(st.one_of(st.integers(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False)))
def test_flag_values_of_open_options_are_toml(value):
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    assert literal(text) == value
    assert literal("compact") == "compact"


def changed(**values):
    config = Config()
    for name, value in values.items():
        config = replaced(config, name.replace("__", "."), value)
    return config


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (changed(objective="max@32"), "max@32 needs more than 32 samples per prompt, got 32"),
        (changed(objective="mx@3"), "unknown objective 'mx'"),
        (changed(loss__normaliser="grpo"), "no length normaliser"),
        (changed(sampling__top_p=0.9), "whole distribution"),
        (changed(sampling__top_k=5), "whole distribution"),
        (changed(loss__name="clipped", sampling__top_p=0.9), "correct_sampler"),
        (changed(loss__name="clipped", off_policy__form="exact"), "never mixed"),
        (changed(objective="grpo", off_policy__passes=3), "no exact off-policy form"),
        (changed(off_policy__mini_batches=3), "3 does not divide"),
        (changed(run__steps=0), "run.steps is at least 1, got 0"),
        (changed(optimiser__learning_rate=0.0), "optimiser.learning_rate is above 0"),
        (changed(evaluation__metric="max@3"), "evaluation.metric is one of"),
        (changed(evaluation__samples_per_prompt=8), "evaluation.ks lie between"),
        (changed(task__options={"api_key": "x"}), "looks like a secret"),
        (changed(objective_options={"truncate": 1.0}), "off_policy.truncate"),
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
    check_resumed(Config(), changed(run__steps=999, run__keep_last=7, run__dir="elsewhere"))
    with pytest.raises(ValueError, match=r"optimiser.learning_rate: 0.0001 → 0.5"):
        check_resumed(Config(), changed(optimiser__learning_rate=0.5))
    with pytest.raises(ValueError, match=r"task.options.numbers: None → 3"):
        check_resumed(Config(), changed(task__options={"numbers": 3}))
    cosine = changed(optimiser__schedule="cosine")
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
