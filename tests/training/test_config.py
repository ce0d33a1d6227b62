"""Recipes and flags: what is read is what was written, and mistakes are answered with a way out."""

import json
import re
import tomllib
from typing import Literal, get_args, get_origin

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bestofk.cli import main as command
from bestofk.cli.train_command import split
from bestofk.config import (
    RESUMABLE,
    Config,
    leaves,
    merged,
    read,
    to_toml,
)
from bestofk.sections import literal, plain, settings
from bestofk.training.checks import (
    cautions,
    check,
    check_installed,
    check_resumed,
    claim_of_run,
    repeated_prompts,
)
from bestofk.training.cost import dry_run, group_lines
from bestofk.training.resolve import resolve

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
OPTIONS = st.dictionaries(
    st.from_regex(r"[a-z_]{1,8}", fullmatch=True),
    st.one_of(TEXT, st.integers(), st.booleans(), st.floats(allow_nan=False), st.lists(TEXT)),
    max_size=4,
)


@given(TEXT, OPTIONS, st.floats(1e-12, 1.0), st.lists(TEXT, max_size=4))
@hypothesis.settings(max_examples=30)
def test_a_config_written_as_toml_is_read_back_the_same(text, options, rate, words):
    config = Config()
    for name, value in [
        ("model.path", text),
        ("task.options", options),
        ("optimizer.learning_rate", rate),
        ("model.advanced.lora_targets", tuple(words)),
        ("task.verifier", None),
    ]:
        config = merged(config, {name: value})
    assert Config(**tomllib.loads(to_toml(config))) == config


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[sampling]\nsamples_per_promt = 3", "did you mean 'samples_per_prompt'"),
        ("[samplng]\nsamples_per_prompt = 3", "did you mean 'sampling'"),
        (
            "[loss]\nname = 'exactly'",
            "loss.name is one of exact, clipped, gspo, got 'exactly'; did you",
        ),
        ("[run]\nsteps = 'ten'", "run.steps is a whole number, got 'ten'"),
        ("[run]\nsteps = true", "run.steps is a whole number, got True"),
        ("[run]\nsteps = 1.5", "run.steps is a whole number, got 1.5"),
        ("run = 3", "run is a section"),
        ("[loss]\nclip = 3", "loss.clip is a list"),
        ("[loss]\nclip = ['a', 1]", "loss.clip is a number, got 'a'"),
        ("[loss]\nclip = [1.0]", "loss.clip is a list of 2 values"),
        ("[optimizer]\nlearning_rate = inf", "optimizer.learning_rate is a finite number"),
        ("[optimizer]\nlearning_rate = nan", "optimizer.learning_rate is a finite number"),
        ("[optimizer]\nlearning_rate = '1'", "optimizer.learning_rate is a number, got '1'"),
        ("[off_policy]\ncorrect_sampler = 1", "off_policy.correct_sampler is true or false, got"),
        ("[run]\ntrackers = 'wandb'", "run.trackers is a list, got 'wandb'"),
        ("[run]\nkeep_last = 3", "did you mean 'run.advanced.keep_last'?"),
        ("[run]\ndir = ''", "run.dir is text of at least one character, got ''"),
        ("[optimizer]\nlr = 0.1", "did you mean 'optimizer.learning_rate'?"),
        ("objective = ", "is not TOML"),
    ],
)
def test_a_mistake_in_a_recipe_is_named_with_the_way_out(tmp_path, text, told):
    file = tmp_path / "run.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=re.escape(told)) as caught:
        read(file)
    assert str(file) in str(caught.value)


def test_rows_in_the_place_of_a_recipe_are_told_where_they_go(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "1 + 1", "answer": "2"}\n')
    with pytest.raises(ValueError, match=f"--task.options.train {re.escape(str(file))}"):
        read(file)


def test_a_recipe_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "run.toml").write_text("\ufeff[run]\nsteps = 3\n", encoding="utf-8")
    assert read(tmp_path / "run.toml").run.steps == 3


def test_flags_override_a_recipe_and_options_are_open(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('objective = "max@4"\n[task.options]\nnumbers = 3\nstyle = "compact"\n')
    flags = "--objective max@16 --run.dir runs/a --task.options.numbers 5 --loss.clip 0.1 0.3"
    options, changes = split([*flags.split(), str(file), "--task.options.low=2"])
    config = merged(read(file), changes)
    assert options.recipe == str(file)
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
        ("--optimizer.lr 8", "did you mean --optimizer.learning_rate? bestofk train --help-all"),
        ("--stepz 8", "unknown option --stepz; did you mean --run.steps? bestofk train --help-al"),
        ("--samples-per-prompt 8", "--sampling.samples_per_prompt or --evaluation.samples_per_pr"),
        ("--overlong-tokens 8", "did you mean --task.advanced.overlong_tokens?"),
        ("--model Qwen/Qwen3-0.6B", "model is a section, write --model.path;"),
        ("--dry_rn", "did you mean --dry-run?"),
        (
            "--nothing.like.it 3",
            "unknown option --nothing.like.it; bestofk train --help-all lists",
        ),
        ("--run.steps many", "run.steps is a whole number, got 'many'"),
        ("--optimizer.learning-rate fast", "optimizer.learning_rate is a number, got 'fast'"),
        (
            "--sampling.engine vlm",
            "is one of auto, group, transformers, vllm, got 'vlm'; did you mean 'vllm'?",
        ),
        ("--run.dir", "--run.dir needs a value"),
        ("--run.dir --run.steps 3", "--run.dir needs a value"),
        ("--loss.clip 0.2 --run.steps 3", "--loss.clip needs 2 values, got 0.2"),
        ("--run.steps 0", "run.steps is at least 1, got 0"),
        ("--task.options 3", "write --task.options.NAME value"),
        ("--json=3", "--json takes no value, got '3'"),
        ("maze-tiny", "unexpected argument 'maze-tiny'"),
        ("-n 3", "unknown option -n; did you mean --sampling.samples_per_prompt or"),
    ],
)
def test_a_mistake_in_the_flags_is_one_line_with_the_way_out(flags, told, capsys):
    assert command(["train", "countdown-tiny", *flags.split()]) == 2
    shown = capsys.readouterr()
    assert told in shown.err
    assert shown.err.startswith("bestofk train: ")
    assert shown.err.count("\n") == 1
    assert not shown.out


OTHER = {int: 3, float: 0.25, str: "other"}


def test_every_setting_can_be_given_by_a_flag():
    """Each setting gets a value that is not its default, and reads back as exactly that."""
    wanted, flags = dict[str, object](), list[str]()
    for name, default in leaves(Config()):
        kind = plain(settings(Config)[name].annotation)
        if get_origin(kind) is Literal:
            value = next(each for each in get_args(kind) if each != default)
        elif get_origin(kind) is tuple:
            inside = get_args(kind)
            count = 3 if inside[-1] is Ellipsis else len(inside)
            named = get_args(inside[0]) if get_origin(inside[0]) is Literal else ()
            value = (named[0] if named else OTHER[plain(inside[0])],) * count
        else:
            value = not default if kind is bool else OTHER[kind]
        assert value != default, name
        wanted[name] = value
        words = [str(each) for each in value] if isinstance(value, tuple) else [str(value)]
        words = [] if value is True else ["false"] if value is False else words
        flags += [f"--{name.replace('_', '-')}", *words]
    assert dict(leaves(merged(Config(), split(flags)[1]))) == wanted


def test_a_flag_can_take_a_value_away_and_turn_a_setting_off():
    config = changed(off_policy__correct_sampler=True, off_policy__trust_region=(1.0, 1.0))
    off = ["--off_policy.correct_sampler=false", "--off-policy.trust-region", "None"]
    found = merged(config, split(off)[1])
    assert not found.off_policy.correct_sampler
    assert found.off_policy.trust_region is None


def test_the_recipe_may_stand_after_the_flags():
    words = ["--run.steps", "3", "--dry-run", "countdown-tiny", "--loss.clip", "0.1", "0.3"]
    options, changes = split(words)
    assert (options.recipe, options.dry_run) == ("countdown-tiny", True)
    assert changes == {"run.steps": 3, "loss.clip": (0.1, 0.3)}
    assert split(["--run.dir", "7"])[1] == {"run.dir": "7"}  # text stays text
    assert split(["--loss.clip", "[0.1, 0.3]"])[1] == {"loss.clip": [0.1, 0.3]}


def test_the_schema_for_editors_knows_bounds_choices_and_texts(capsys):
    assert command(["train", "--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    run = schema["$defs"]["RunSection"]["properties"]
    assert (run["steps"]["minimum"], run["steps"]["description"]) == (1, "Batches of rollouts.")
    assert schema["$defs"]["Loss"]["properties"]["name"]["enum"] == ["exact", "clipped", "gspo"]
    assert schema["additionalProperties"] is False


def test_what_a_resumed_run_may_change_is_a_setting():
    assert settings(Config).keys() >= RESUMABLE


@given(st.one_of(st.integers(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False)))
def test_flag_values_of_open_options_are_toml(value):
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    assert literal(text) == value
    assert literal("compact") == "compact"
    assert literal("{not an object") == "{not an object"


def changed(**values):
    config = Config()
    for name, value in values.items():
        config = merged(config, {name.replace("__", "."): value})
    return config


def vllm(server):
    return changed(sampling__engine="vllm", sampling__server=server)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (changed(sampling__samples_per_prompt=16),
         "max@16 needs more than 16 samples per prompt, got 16, in max@1+4+16: "),
        (changed(objective="mx@3"), "unknown objective 'mx'"),
        (changed(sampling__top_p=0.9), "whole distribution"),
        (changed(sampling__top_k=5), "whole distribution"),
        (changed(loss__name="clipped", sampling__top_p=0.9), "correct_sampler"),
        (changed(loss__name="clipped", objective_options={"off_policy": "exact"}), "never mixed"),
        (changed(objective="grpo", off_policy__passes=3), "no exact off-policy form"),
        (changed(off_policy__mini_batches=3), "3 does not divide"),
        (changed(off_policy__ahead=1, sampling__refill=2), "set sampling.refill = 0, got 2"),
        (changed(off_policy__ahead=1, sampling__engine="vllm", sampling__server="http://127.0.0.1"),
         "against the server's log-probs"),
        (changed(sampling__temperature=0.0), "above 0 in training"),
        (changed(model__advanced__lora_alpha=4.0), "set model.lora_rank"),
        (changed(model__advanced__lora_nf4=True), "set model.lora_rank"),
        (changed(model__lora_rank=2, model__advanced__lora_nf4=True, model__advanced__fsdp=True),
         "leave one of them out"),
        (changed(model__advanced__lora_fp8=True), "set model.lora_rank"),
        (changed(model__lora_rank=2, model__advanced__lora_fp8=True, model__advanced__fsdp=True),
         "leave one of them out"),
        (changed(model__lora_rank=2, model__advanced__lora_fp8=True), "model.precision = 'bf16'"),
        (changed(model__lora_rank=2, model__advanced__lora_fp8=True, model__precision="bf16",
                 sampling__engine="vllm", sampling__server="unix:///a"),
         "leave sampling.server out"),
        (changed(evaluation__best_by="max@3"), "evaluation.best_by is one of"),
        (changed(task__options={"api_key": "x"}), "looks like a secret"),
        (changed(objective="passk-training@4:adaptive", sampling__refill=1), "refill"),
        (changed(sampling__server="http://127.0.0.1:8000"), "server is for sampling.engine"),
        (changed(sampling__engine="vllm"), "set sampling.server, for example 'http://127.0.0.1:8000'"),
        (vllm("http://10.1.1.1:8000"), "runs on this machine"),
        (vllm("https://127.0.0.1"), "runs on this machine"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_before_anything_is_loaded(config, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        resolve(config, dry=True)


def test_an_engine_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="needs httpx: pip install"):
        check_installed(vllm("unix:///a"))
    served = resolve(vllm("unix:///a"), dry=True)  # which loads nothing, and needs nothing
    assert "vllm" in dry_run(served)
    check_installed(changed(sampling__engine="transformers"))


@pytest.mark.parametrize(
    "config",
    [
        changed(objective="grpo", loss__name="clipped", off_policy__passes=3),
        changed(objective="grpo"),
        changed(objective="max@8", off_policy__passes=2, off_policy__mini_batches=4),
        changed(objective="max@8/60%/mean"),
        changed(loss__name="clipped", sampling__top_p=0.9, off_policy__correct_sampler=True),
        *map(vllm, ("http://localhost:1", "http://[::1]:1/v1", "unix:///a/b")),
    ],
)
def test_what_can_work_is_accepted(config):
    assert check(config).text == config.objective


def test_a_resumed_run_may_change_only_what_no_step_depended_on():
    allowed = changed(run__steps=999, run__advanced__keep_last=7, run__dir="elsewhere")
    check_resumed(Config(), allowed)
    with pytest.raises(ValueError, match=r"optimizer.learning_rate: 0.1 → 0.5"):
        check_resumed(*(changed(optimizer__learning_rate=rate) for rate in (0.1, 0.5)))
    with pytest.raises(ValueError, match=r"task.options.numbers: None → 3"):
        check_resumed(Config(), changed(task__options={"numbers": 3}))
    cosine = changed(optimizer__schedule="cosine")
    with pytest.raises(ValueError, match=r"run\.steps: 200 → 300"):
        check_resumed(cosine, merged(cosine, {"run.steps": 300}))
    anneal = changed(objective="max@8..1")
    with pytest.raises(ValueError, match=r"run\.steps: 200 → 300"):
        check_resumed(anneal, merged(anneal, {"run.steps": 300}))


BOUNDS = [
    ({"run": {"steps": 0}}, "run.steps is at least 1, got 0"),
    ({"sampling": {"advanced": {"agreement": 0.0}}}, "above 0, got 0"),
    ({"sampling": {"advanced": {"max_rows": True}}}, "max_rows is a whole number, got True"),
    ({"optimizer": {"learning_rate": 0.0}}, "optimizer.learning_rate is above 0, got 0"),
    ({"sampling": {"top_p": 0.0}}, "sampling.top_p is above 0, got 0"),
    ({"loss": {"clip": [0.1, -1.0]}}, "loss.clip is at least 0, got -1"),
    (
        {"off_policy": {"trust_region": [0.1, -1.0]}},
        "trust_region is at least 0, got -1",
    ),
    ({"run": {"trackers": ["wandbb"]}}, "tensorboard, wandb, trackio, got 'wandbb'; did you mean"),
    ({"loss": {"normaliser": "grpo"}}, "loss: the exact loss does not accept a length normaliser"),
]


@pytest.mark.parametrize(("stated", "told"), BOUNDS)
def test_bounds_are_checked_where_a_section_is_made(stated, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        Config(**stated)


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
    settings = resolve(changed(**changes))
    stated, reason = claim_of_run(settings.objective, settings.loss, settings.off_policy)
    assert (stated, why in reason) == (claim, True)
    assert any(reason in note for note in settings.notes) == (claim == "biased")
    assert f"expected update: {claim} ({reason})" in " ".join(group_lines(settings))


def test_a_warm_up_longer_than_the_run_is_mentioned():
    config = changed(optimizer__warmup_steps=999)
    assert any("999 and the run has 200" in note for note in cautions(config, check(config)))
    assert not any("warmup" in note for note in cautions(Config(), check(Config())))


def test_a_learning_rate_far_above_the_usual_is_said():
    """Ten times the usual one is not: tiny policies of the tutorials learn with it."""
    far = changed(optimizer__learning_rate=1e-4)
    (note,) = cautions(far, check(far), weights=600_000_000)
    assert note.startswith("optimizer.learning_rate = 0.0001 is 50 times what is usual")
    assert note.endswith("leave it out for 2e-06")
    adapters = changed(optimizer__learning_rate=1e-4, model__lora_rank=8)
    assert not cautions(adapters, check(adapters), weights=600_000_000)
    tiny = changed(optimizer__learning_rate=1e-3)
    assert not cautions(tiny, check(tiny), weights=200_000)


def test_a_setting_that_nothing_uses_is_said():
    config = merged(
        Config(),
        {
            "loss.clip": (0.1, 0.1),
            "loss.kl_estimator": "k3",
            "off_policy.trust_region": (0.2, 0.2),
            "objective_options.off_policy": "first-order",
            "evaluation": {"every": 0, "best_by": "max@1"},
        },
    )
    told = [line.partition(" has no effect: ")[0] for line in cautions(config, check(config))]
    unused = ["off_policy.trust_region", "objective_options.off_policy", "loss.clip"]
    assert told == [*unused, "loss.kl_estimator", "evaluation.best_by"]
    several = merged(config, {"off_policy.mini_batches": 2, "loss.kl": 0.1, "evaluation.every": 5})
    (clip,) = [each for each in cautions(several, check(several)) if "no effect" in each]
    assert clip.startswith("loss.clip has no effect: the exact loss does not clip")
    clipped = merged(several, {"loss.name": "clipped", "objective_options": {"off_policy": "none"}})
    assert [each for each in cautions(clipped, check(clipped)) if "no effect" in each] == [
        "off_policy.trust_region has no effect: with loss.name = 'clipped' the loss has its own "
        "ratios"
    ]
    late = merged(
        Config(), {"optimizer": {"schedule": "cosine", "warmup_steps": 9}, "run.steps": 4}
    )
    assert cautions(late, check(late))[0].endswith("and the cosine schedule never starts")
    assert "has 3 prompts: a step holds some" in repeated_prompts(Config().sampling, 3)[0]
    assert not repeated_prompts(Config().sampling, 16)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"task.advanced.overlong_tokens": 300}, "so it cannot be longer"),
        ({"objective_options.live": 3}, "the run itself gives it at every step: leave it out"),
        ({"objective_options.trust_region": [0.2, 0.2]}, "set off_policy.trust_region"),
        ({"evaluation.sets": {"a/b": "maze"}}, "got 'a/b'"),
        ({"evaluation.sets": {"a": "mazes"}}, "or a source of rows such as 'aime.jsonl'"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_loaded(changes, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        check(merged(Config(), changes))
