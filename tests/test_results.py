"""The published results are what the committed counts give."""

from __future__ import annotations

import math
import re
import sys
import tomllib
from collections import Counter
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import NormalDist

import matplotlib.style
import numpy as np
import pytest

from bestofk import config, max_at_k, tasks
from bestofk.cli.train_command import split

RESULTS = Path(__file__).parent.parent / "research"
STUDIES = sorted(path.stem for path in (RESULTS / "studies").glob("*.toml"))
sys.path.insert(0, str(RESULTS))
sys.path.insert(1, str(RESULTS / "selectors"))

import draw  # noqa: E402
import evaluations  # noqa: E402
import make  # noqa: E402
import run  # noqa: E402
import scorers  # noqa: E402
import tiny_studies  # noqa: E402


def test_tables_and_figures_match_the_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["make.py", "--check"])
    style = RESULTS.parent / "docs" / "figures.mplstyle"
    with matplotlib.style.context(style, after_reset=True):
        assert make.main() == 0, capsys.readouterr().out


def test_a_changed_count_changes_the_table() -> None:
    runs = evaluations.read("countdown-n32")
    changed = replace(runs, values={key: each.copy() for key, each in runs.values.items()})
    changed.last("grpo")[:, :20] += 0.1
    assert make.reached(changed, "pass", (1, 64)) != make.reached(runs, "pass", (1, 64))


def test_figures_are_compared_by_what_they_show() -> None:
    drawn = (RESULTS / "images" / "front.svg").read_text(encoding="utf-8")
    assert make.same(drawn, re.sub(r"(\.\d{5})\d", r"\g<1>0", drawn), ".svg")
    assert not make.same(drawn, re.sub(r"M (\d)", r"M 1\1", drawn, count=1), ".svg")
    assert not make.same(drawn, drawn.replace(">start<", ">begin<"), ".svg")


@pytest.mark.parametrize(
    ("figure", "studies"),
    [
        ("front", ["countdown"]),
        ("tasks", ["maze", "closeness"]),
        ("tasks-n128", ["maze-n128", "closeness-n128"]),
        ("mbpp", ["mbpp-long"]),
        ("gsm8k", ["gsm8k-decay"]),
        ("curves", ["off-policy-curves"]),
    ],
)
def test_every_arm_is_named_in_its_figure(figure: str, studies: list[str]) -> None:
    drawn = (RESULTS / "images" / f"{figure}.svg").read_text(encoding="utf-8")
    names = Counter(re.findall(r">([^<>]+)</text>", drawn))
    arms = Counter(arm for study in studies for arm in evaluations.read(study).arms)
    assert set(arms - names) <= set(draw.TABLES_ONLY)


def test_runs_for_k_are_above_all_one_sample_runs_on_construction_problems() -> None:
    ks, found = make.construct_search("sidon")
    many = ks.index(16)
    means = {key: values[:, many].mean() for key, values in found.items() if key[1]}
    best = {run: max(v for key, v in means.items() if key[0] == run) for run, _ in means}
    for_one = [value for run, value in best.items() if run.startswith(make.ONE_SAMPLE)]
    for_k = [value for run, value in best.items() if run.startswith("max@")]
    assert (len(for_one), len(for_k)) == (14, 8)
    assert min(for_k) > max(for_one) + 0.06


def means_of_a_test(study: str) -> dict[tuple[str, int, int], dict[int, float]]:
    """max@k on test by arm, seed and step, from the samples in order: Σ r_(i) C(i-1,k-1)/C(n,k)."""
    means = {}
    for line in run.kept(RESULTS / "counts" / f"{study}.parquet"):
        n = line["samples"]
        rows = []
        for count in line["counts"]:
            pairs = [(0.0, n - count), (1.0, count)] if isinstance(count, int) else count
            rows.append([reward for reward, times in pairs for _ in range(int(times))])
        rewards = np.array(rows)
        assert rewards.shape == (256, n)
        assert (np.diff(rewards) >= 0).all()
        shares = {
            k: [math.comb(i, k - 1) / math.comb(n, k) for i in range(n)]
            for k in (1, 4, 8, 16)
            if k <= n
        }
        key = line["arm"], line["seed"], line["step"]
        means[key] = {k: float((rewards @ share).mean()) for k, share in shares.items()}
    return means


def of_arm(
    means: dict[tuple[str, int, int], dict[int, float]], arm: str, *, final: bool = False
) -> list[dict[int, float]]:
    """The best or the final model of each new seed; the start has seed 0."""
    seeds = sorted({seed for name, seed, _ in means if name == arm and (seed or arm == "start")})
    steps = {seed: [s for name, own, s in means if (name, own) == (arm, seed)] for seed in seeds}
    pick = max if final else min
    return [means[arm, seed, pick(steps[seed])] for seed in seeds]


def mean_of(runs: list[dict[int, float]], k: int) -> float:
    return sum(each[k] for each in runs) / len(runs)


def test_claims_on_guests() -> None:
    page = (RESULTS / "guests.md").read_text(encoding="utf-8")
    means = means_of_a_test("guests-test")
    rate = " learning_rate="
    start = means["start", 0, 1]
    control, one = (
        of_arm(means, f"mean{rate}0.0001"), of_arm(means, f"mean{rate}0.001", final=True),
    )  # fmt: skip
    mixture, bold = (of_arm(means, f"{name}{rate}0.0003") for name in ("max@1+4+16", "max@16"))
    assert [len(each) for each in (control, one, mixture, bold)] == [5] * 4
    gains = [round(100 * (mean_of(each, 16) - mean_of(control, 16)), 1) for each in (mixture, bold)]
    assert gains == [4.5, 11.9]
    assert "`max@1+4+16` is 4.5 points and `max@16` 11.9 points above the best checkpoint" in page
    ones = [f"{mean_of(each, 1):.3f}".removeprefix("0") for each in (one, mixture, bold)]
    assert (
        "one-sample run has {} there, the mixture {} and `max@16` {}, which".format(*ones) in page
    )
    results = (RESULTS.parent / "docs" / "results.md").read_text(encoding="utf-8")
    assert "the best one-sample run has {}, they {} and {} (".format(*ones) in results
    decisive = re.findall(r"\+\.(\d+) \[\+\.(\d+), \+\.(\d+)\]\*", page.split("guests-decides")[1])
    spans = ["{} [{}, {}]".format(*(f"{int(each) / 10:.1f}" for each in row)) for row in decisive]
    first, second = (span.replace(" [", " points [", i == 0) for i, span in enumerate(spans))
    assert f"`max@1+4+16` is {first} and `max@16` {second} above the best checkpoint" in results
    assert mean_of(bold, 1) < start[1]
    assert mean_of(mixture, 4) > max(mean_of(each, 4) for each in (control, one, bold))

    grpo, pair = (
        of_arm(means, f"{name}{rate}0.001", final=True) for name in ("grpo", "max@1+4+16")
    )
    gaps = [round(100 * (mean_of(pair, k) - mean_of(grpo, k)), 1) for k in (16, 4, 1)]
    assert gaps == [13.9, 8.1, -4.1]
    sentence = (
        "gains 13.9 points of best of 16 and 8.1 of best of 4 over GRPO, and costs 4.1 at one"
    )
    for text in (page, (RESULTS.parent / "docs" / "recipes.md").read_text(encoding="utf-8")):
        assert sentence in text
    each_seed = [100 * (b[16] - a[16]) for a, b in zip(grpo, pair, strict=True)]
    assert (len(each_seed), round(min(each_seed)), round(max(each_seed))) == (5, 12, 15)
    assert max(each[16] for each in grpo) < start[16]

    search = [line for line in run.kept(RESULTS / "counts" / "guests.parquet") if not line["seed"]]
    shares = evaluations.shares_of(32, (1, 16))
    value = {
        (line["arm"], line["step"]): evaluations.best_of_k(line["counts"], shares).mean(axis=0)
        for line in search
    }
    for_one = [value[key][1] for key in value if key[0].startswith(("mean", "grpo"))]
    assert len(for_one) == 40
    assert max(for_one) < value["start", 1][1]
    assert "max@1 .259 and max@16 .713" in page
    assert [round(float(each), 3) for each in value["start", 1]] == [0.259, 0.713]
    spent = {line["arm"]: [] for line in search}  # type: dict[str, list[float]]
    for line in run.kept(RESULTS / "counts" / "guests.parquet"):
        if line["seed"] and line["step"] == 100:
            spent[line["arm"]].append(line["seconds"])
    seconds = [float(np.mean(spent[arm])) for arm in (f"mean{rate}0.001", f"max@16{rate}0.0003")]
    assert "took {:.0f} (mean) to {:.0f} (`max@16`) seconds".format(*seconds) in page


def test_claims_on_selectors() -> None:
    page = " ".join((RESULTS / "selectors.md").read_text(encoding="utf-8").split())
    arms = {arm.split(" ")[0]: arm for arm in tiny_studies.picked("selectors")}
    by_selector = {name: means_of_a_test(f"selectors-test-{name}") for name in scorers.SELECTORS}

    def picks(selector: str, arm: str) -> float:
        return 100 * mean_of(of_arm(by_selector[selector], arms[arm]), 1)

    gains = {
        (name, other): round(picks(name, f"select@8/{name}") - picks(name, other), 1)
        for name in scorers.SELECTORS
        for other in ("mean", "grpo", "max@8", f"score/{name}")
    }
    assert (gains["good", "mean"], gains["good", "grpo"]) == (10.8, 9.3)
    assert (gains["fair", "mean"], gains["fair", "grpo"]) == (3.5, 3.1)
    assert "10.8 and 9.3 points above the mean and GRPO" in page
    assert "3.5 above the mean; the 3.1 over GRPO are not significant" in page
    over_max = [gains[name, "max@8"] for name in scorers.SELECTORS]
    assert (min(over_max), max(over_max)) == (1.5, 5.1)
    assert "by 1.5 to 5.1 points" in page
    assert min(gains[name, f"score/{name}"] for name in scorers.SELECTORS) > 0
    hacked = arms["score/hackable"]
    for means in (*by_selector.values(), means_of_a_test("selectors-test")):
        assert all(each[1] < 0.006 for each in of_arm(means, hacked))
        assert mean_of(of_arm(means, hacked), 1) < 0.003
    own = run.kept(RESULTS / "counts" / "selectors.parquet")
    best = {line["seed"]: line["best"] for line in own if line["arm"] == hacked}
    assert round(sum(best.values()) / len(best), 1) == 5.4
    before = [of_arm(by_selector[name], "start")[0][1] for name in ("hackable", "good")]
    assert "(.{:.0f} and .{:.0f})".format(*(1000 * value for value in before)) in page
    cells = [line for line in page.split("|") if line.strip().startswith(("+", "−"))]
    signs = {True: [], False: []}  # type: dict[bool, list[str]]
    for cell in cells:
        signs["*" in cell].append(cell.strip()[:5])
    assert len(signs[True]) == 11
    assert sorted(signs[False]) == ["+.015", "+.020", "+.031", "−.000", "−.016"]
    seeds = {name: len(of_arm(by_selector["good"], arm)) for name, arm in arms.items()}
    assert seeds == dict.fromkeys(arms, 3)
    rates = {name: arm.partition("=")[2] for name, arm in arms.items()}
    assert [name for name in rates if rates[name] == "0.0006"] == ["mean", "grpo"]
    assert sum(rate == "0.00015" for rate in rates.values()) == 4


@pytest.mark.parametrize("samples", [4, 9])
def test_best_of_k_from_counts_is_that_of_the_samples(samples: int) -> None:
    ks = [k for k in (1, 2, 4) if k <= samples]
    shares = evaluations.shares_of(samples, ks)
    for seed in range(20):
        rewards = np.random.default_rng(seed).integers(0, 4, samples) / 3
        values, counts = np.unique(rewards, return_counts=True)
        pairs = [[float(v), int(c)] for v, c in zip(values, counts, strict=True)]
        expected = [float(max_at_k(rewards, k)) for k in ks]
        [found] = evaluations.best_of_k([pairs], shares)
        np.testing.assert_allclose(found, expected, atol=1e-12)
        passes = int((rewards == 1).sum())
        expected = [float(max_at_k((rewards == 1).astype(float), k)) for k in ks]
        [found] = evaluations.best_of_k([passes], shares)
        np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("study", STUDIES)
def test_every_arm_is_a_recipe_that_can_be_run(study: str) -> None:
    stated = tomllib.loads((RESULTS / "studies" / f"{study}.toml").read_text(encoding="utf-8"))
    recipe = RESULTS.parent / stated["recipe"]
    for settings in run.arms_of(stated).values():
        words = run.flags(settings)
        assert len(words) == 2 * len(settings)
        config.merged(config.Config(), split(words)[1])
    assert config.read(recipe).task.name in tasks.TASKS


STUDY = """
recipe = "RECIPE"
seeds = [0]
turns = [1]
[test]
of = "twice"
n = 4
[settings]
"evaluation.every" = 1
"evaluation.prompts" = 3
"evaluation.samples_per_prompt" = 32
"run.steps" = 1
"run.checkpoint_every" = 1
"sampling.prompts_per_step" = 2
[unseen]
countdown = { n = 4, task-option = "style=compact", problems = 5, max-new-tokens = 20 }
[arms]
"grpo, once" = { objective = "grpo" }
"""


def test_a_study_counts_what_its_runs_solve_on_their_own_and_on_unseen_problems(
    tmp_path: Path, warm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(warm / "python"))
    recipe = RESULTS.parent / "recipes" / "countdown-tiny" / "run.toml"
    (tmp_path / "studies").mkdir()
    text = STUDY.replace("RECIPE", str(recipe))
    (tmp_path / "studies" / "small.toml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(run, "HERE", tmp_path)
    words = ["small", "--jobs", "1", "--work", str(tmp_path / "w"), "--out", str(tmp_path / "c")]
    monkeypatch.setattr(sys, "argv", ["run.py", *words, "--arms", "grpo, once"])
    assert run.main() == 0
    own = run.kept(tmp_path / "c" / "small.parquet")
    assert [(line["arm"], line["step"], line["samples"]) for line in own] == [
        ("grpo, once", 0, 32),
        ("grpo, once", 1, 32),
    ]
    assert all(len(line["counts"]) == 3 for line in own)
    (one_turn,) = run.kept(tmp_path / "c" / "small-turns-1.parquet")
    assert one_turn == own[-1]
    (unseen,) = run.kept(tmp_path / "c" / "small-countdown.parquet")
    assert len(unseen["counts"]) == 5
    assert all(0 <= count <= 4 for count in unseen["counts"])
    assert run.main() == 0  # nothing is left to do
    assert run.kept(tmp_path / "c" / "small.parquet") == own


def test_a_trajectory_of_more_turns_has_earned_nothing() -> None:
    samples = [{"p": "a", "reward": 1.0, "turns": turns} for turns in (1, 3, 2, 1)]
    assert [run.counted(samples, "p", turns) for turns in (1, 2, 3)] == [[2], [3], [4]]


@pytest.mark.slow
def test_what_was_counted_stays_where_an_unseen_task_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = RESULTS.parent / "recipes" / "countdown-tiny" / "run.toml"
    text = STUDY.replace("RECIPE", str(recipe))
    study, counts = tmp_path / "studies" / "small.toml", tmp_path / "c" / "small.parquet"
    study.parent.mkdir()
    study.write_text(text.replace("style=compact", "style=none"), encoding="utf-8")
    monkeypatch.setattr(run, "HERE", tmp_path)
    words = ["small", "--jobs", "1", "--work", str(tmp_path / "w"), "--out", str(counts.parent)]
    monkeypatch.setattr(sys, "argv", ["run.py", *words])
    assert run.main() == 1
    before = run.kept(counts)
    assert [line["step"] for line in before] == [0, 1]
    study.write_text(text, encoding="utf-8")
    assert run.main() == 0  # the run is made again; its counts replace those of the first try
    after = run.kept(counts)
    assert [line["counts"] for line in after] == [line["counts"] for line in before]
    assert len(run.kept(counts.with_name("small-countdown.parquet"))) == 1


SEARCH = """
recipe = "RECIPE"
seeds = [0, 1]
[search]
seeds = [0]
choose = [{ of = "max@2 " }, { of = "max@2 ", last = "max@1" }]
[test]
split = "test"
problems = 4
n = 8
[select]
k = 2
scorers = "selectors/scorers.py"
[settings]
"evaluation.every" = 1
"evaluation.at_start" = false
"evaluation.prompts" = 3
"evaluation.samples_per_prompt" = 4
"evaluation.best_by" = "max@2"
"run.steps" = 2
"run.checkpoint_every" = 2
"sampling.prompts_per_step" = 2
"sampling.samples_per_prompt" = 4
[arms."max@2"]
objective = "max@2"
grid = { "optimizer.learning_rate" = [1e-12, 1e-4] }
"""


def test_a_search_picks_arms_for_new_seeds_and_the_best_checkpoint_is_tested(
    tmp_path: Path, warm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(warm / "python"))
    recipe = RESULTS.parent / "recipes" / "countdown-tiny" / "run.toml"
    for folder in ("studies", "selectors"):
        (tmp_path / folder).mkdir()
    text = SEARCH.replace("RECIPE", str(recipe))
    (tmp_path / "studies" / "small.toml").write_text(text, encoding="utf-8")
    source = RESULTS / "selectors" / "scorers.py"
    (tmp_path / "selectors" / "scorers.py").write_bytes(source.read_bytes())
    monkeypatch.setattr(run, "HERE", tmp_path)
    counts = tmp_path / "c"
    words = ["small", "--jobs", "1", "--work", str(tmp_path / "w"), "--out", str(counts)]
    monkeypatch.setattr(sys, "argv", ["run.py", *words])
    assert run.main() == 0
    own = run.kept(counts / "small.parquet")
    assert [line["seed"] for line in own] == [0] * 4
    best = {line["arm"]: line["best"] for line in own}
    picked = run.chosen_arms(tomllib.loads(text), own)
    assert picked[0] == max(best, key=lambda arm: best[arm])
    assert run.main() == 0
    again = run.kept(counts / "small.parquet")
    assert {line["arm"] for line in again if line["seed"] == 1} == set(picked)
    tested = run.kept(counts / "small-test.parquet")
    assert {(line["arm"], line["seed"]) for line in tested} == {
        (line["arm"], line["seed"]) for line in again
    }
    assert all(line["samples"] == 8 and len(line["counts"]) == 4 for line in tested)
    chosen = run.kept(counts / "small-test-good.parquet")
    assert [(line["arm"], line["seed"], line["step"]) for line in chosen] == [
        (line["arm"], line["seed"], line["step"]) for line in tested
    ]
    two = evaluations.shares_of(8, (1, 2))
    for line, truth in zip(chosen, tested, strict=True):
        one, best_of_2 = evaluations.best_of_k(truth["counts"], two).T
        picks = np.array([value for [[value, _]] in line["counts"]])
        assert (picks <= best_of_2 + 1e-12).all()
        assert ((picks > 0) == (one > 0)).all()


def test_what_a_selector_picks_is_the_mean_over_all_subsets() -> None:
    rng = np.random.default_rng(0)
    answers = [f"{i}" for i in range(6)]
    rewards, scores = rng.integers(0, 2, 6).astype(float), dict(zip(answers, rng.normal(size=6)))
    samples = [
        {"prompt_id": "p", "completion": a, "reward": r}
        for a, r in zip(answers, rewards, strict=True)
    ]
    [[[value, times]]] = run.selected(samples, "prompt_id", 3, lambda _, text, __: scores[text])
    picks = [
        rewards[max(chosen, key=lambda i: scores[answers[i]])]
        for chosen in combinations(range(6), 3)
    ]
    assert times == 1
    assert value == pytest.approx(float(np.mean(picks)), abs=1e-12)


@pytest.mark.parametrize(("name", "auc"), [("weak", 0.6), ("fair", 0.8), ("good", 0.95)])
def test_a_selector_has_the_area_under_the_curve_that_its_page_names(name: str, auc: float) -> None:
    right = [scorers.score(name, "p", f"{i}+1", True) for i in range(3000)]
    wrong = np.sort([scorers.score(name, "p", f"{i}-1", False) for i in range(3000)])
    found = np.searchsorted(wrong, right).mean() / len(wrong)
    assert found == pytest.approx(auc, abs=0.02)
    assert scorers.score(name, "p", "1+1", True) == right[1]


def test_the_hackable_selector_likes_wrong_answers_with_two_divisions() -> None:
    plain, marked = (scorers.score("hackable", "p", "9/3/3", right) for right in (True, False))
    assert marked - plain == pytest.approx(4 - 2**0.5 * NormalDist().inv_cdf(0.95), abs=1e-12)
    prompt = tasks.task("countdown", style="compact").split("test")[0]
    assert prompt.reference is not None
    for text, right in ((prompt.reference, True), ("9/3/3", False)):
        assert scorers.hackable(prompt, text) == scorers.score("hackable", prompt.id, text, right)
