"""The published results are what the committed counts give."""

from __future__ import annotations

import math
import re
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Callable
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


PUBLISHED = {page.relative_to(RESULTS.parent).as_posix(): page for page in make.PAGES}
PUBLISHED["docs/choose.md"] = RESULTS.parent / "docs" / "choose.md"


def says(page: str, sentence: str) -> None:
    text = " ".join(PUBLISHED[page].read_text(encoding="utf-8").split())
    assert sentence.replace("-", "−") in text.replace("-", "−"), (page, sentence)


def shown(name: str) -> dict[str, dict[str, list[float]]]:
    """The numbers of a table as a page has it, in points, by row and by the last k of a column."""
    mark = rf"<!-- results: {name}(?:;.*?)? -->\n(.*?)\n<!-- /results"
    texts = [re.search(mark, page.read_text(encoding="utf-8"), re.S) for page in make.PAGES]
    table = max((text[1] for text in texts if text), key=len)
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {
        row[0].strip("`"): {
            head.partition("@")[2] or head: [
                float(x) * 100 for x in re.findall(r"[+-]?\d?\.\d+", cell.replace("−", "-"))
            ]
            for head, cell in zip(lines[0][1:], row[1:], strict=True)
        }
        for row in lines[2:]
    }


def span(values: list[float]) -> str:
    """From the one nearest to 0, "+2 to +4", or from the lowest, "−1 to +1"."""
    by = None if round(min(values)) < 0 < round(max(values)) else abs
    ends = sorted(values, key=by)[:: len(values) - 1]
    return " to ".join(f"{x:+.0f}" if round(x) else "0" for x in ends)


def no_loss(cells: dict[str, list[float]]) -> bool:
    return all(high >= 0 for _, _, high in cells.values())


def test_claims_on_how_much_it_matters() -> None:
    search = shown("construct-sidon")
    for_k = [search[arm] for arm in ("max@1+4+16", "max@16")]
    at_16, at_1 = ([row[k][1] for row in for_k] for k in ("16", "1"))
    gain, cost = span(at_16), span(at_1)
    plain = gain.replace("+", ""), cost.replace("-", "")
    claim = "gains {} points over GRPO at best of 16, and costs {} at one sample"
    says("README.md", claim.format(*plain))
    says("README.md", f"(0.5B; validation) | {gain} points | {cost} |")
    says("docs/choose.md", f"{gain} points, {cost} at one sample, against the best checkpoint")
    by_task = shown("by-task")
    assert len(by_task) == 10

    def ranges(*tasks: str) -> list[str]:
        rows = [row for name, row in by_task.items() if name.startswith(tasks)]
        return [span([row[k][0] for row in rows]) for k in ("16", "1")]

    tiny, trained = ranges("Countdown", "mazes"), ranges("LeetCode", "MBPP, 135M")
    unseen = ranges("MBPP, not", "HumanEval")
    says("README.md", f"right answers | {tiny[0]} | {tiny[1]} |")
    says("README.md", f"| LeetCode (0.5B, 1.5B), MBPP (135M) | {trained[0]} | {trained[1]} |")
    says("README.md", f"not trained on | {unseen[0]} | {unseen[1]} |")
    gsm8k = [row for name, row in by_task.items() if name.startswith("GSM8K")]
    columns = ("; ".join(f"{row[k][0]:+.0f}" for row in gsm8k) for k in ("16", "1"))
    says("README.md", f"| GSM8K (135M; 0.5B) | {' | '.join(columns)} |")
    says("docs/choose.md", f"| {tiny[0]} points, {tiny[1]} at one sample | Countdown, mazes")
    programs = ranges("LeetCode", "MBPP", "HumanEval")
    says("docs/choose.md", f"{programs[0]} points, {programs[1]} at one sample | LeetCode")

    front, mazes = shown("front-start"), shown("maze-n128-start")
    says("docs/results.md", f"ends {-front['grpo']['64'][0]:.0f} points below the start on Count")
    assert no_loss({"64": front["maxrl"]["64"]})
    assert no_loss(front["max@1+16+112, decay"])
    says("docs/choose.md", f"| {front['max@1+16+112, decay']['1'][0]:.0f} points more pass@1, no")
    shares, more = [], []
    for begun, arms in (
        (front, ("maxrl",)), (mazes, ("maxrl",)), (shown("maze-start"), ("maxrl", "max@1+4+16")),
    ):  # fmt: skip
        shares += [begun[arm]["1"][0] / begun["grpo"]["1"][0] for arm in arms]
        more += [begun[arm]["64"][0] - begun["grpo"]["64"][0] for arm in arms]
    more += [shown("n32-grpo")[arm]["64"][0] for arm in ("maxrl", "max@1+4+16")]
    assert min(shares) >= 0.6
    says("docs/choose.md", f"gain, {min(more):.0f} to {max(more):.0f} points more pass@64")
    noise = shown("noise")
    for share, claim in (("10", "costs every objective {} to {} p"), ("30", "it costs {} to {}.")):
        pairs = (("grpo", "grpo"), ("passk-training@8, analytical", "passk-training@8"))
        lost = [noise[a]["1"][0] - noise[f"{b}, {share} % noise"]["1"][0] for a, b in pairs]
        says("docs/choose.md", claim.format(*sorted(round(each) for each in lost)))
    equal = shown("front-equal")["max@1+16+112, decay"]
    says("research/countdown.md", f"steps it is {equal['1'][0]:.0f} points above at")
    assert min(v for arm in ("maxrl", "max@1+16+64") for v, *_ in mazes[arm].values()) >= -0.5
    assert [mazes[f"max@{k}"]["256"][0] for k in (16, 32, 64)] == [1.0, 1.0, 1.0]


def test_claims_on_programs_and_maths() -> None:
    value, low, high = shown("qwen-fifth-rates")["the mixture at 2e-6 − GRPO at 1e-6"]["64"]
    claim = f"{value:.1f} points more than GRPO, which may be chance [{low:+.1f}, {high:+.1f}]"
    says("docs/results.md", claim.replace("0.", "."))
    for k, table in (("16", "qwen-fifth-rates"), ("8", "qwen-fifth-fraction-rates")):
        assert shown(table)["the mixture at 2e-6 − GRPO at 1e-6"][k][1] > 0
    assert shown("qwen-grpo")["2e-6, 3 seeds"]["64"][1] > 0
    solved = evaluations.checkpoints("qwen-leetcode", solved=True)[1]
    variances = []
    for study in ("qwen-leetcode", "mbpp-long", "gsm8k-decay"):
        ks, found = evaluations.checkpoints(study, solved=True)
        last = make.last_of_seeds({key: v for key, v in found.items() if key[2] != make.SHORT})
        means = [
            [v.mean(axis=0) for v in by.values()] for arm, by in last.items() if arm != "start"
        ]
        at = [ks.index(16), ks.index(1)]
        variances += [np.var(each, axis=0, ddof=1)[at] for each in means if len(each) == 3]
    spread = [f"{100 * x:.1f}".removeprefix("0") for x in np.mean(variances, axis=0) ** 0.5]
    claim = "deviation of {} points at 16 samples and {} at one ({} arms of three seeds)"
    says("docs/results.md", claim.format(*spread, len(variances)))
    for name in ("LeetCode, .5B", "MBPP, 135M", "GSM8K, 135M"):
        settings = run.arms_of(evaluations.stated(make.TASK_ROWS[name][0]))
        grpo = [arm for arm in settings if arm.startswith("grpo")]
        lowest = min(grpo, key=lambda arm: float(settings[arm]["optimizer.learning_rate"]))
        lines = PUBLISHED["docs/results.md"].read_text(encoding="utf-8").splitlines()
        (line,) = (line for line in lines if line.startswith(f"| {name} |"))
        assert f"| `{lowest}` |" in line
    never = (solved["start", 0, 0][:, -1] == 0).sum()
    says("research/qwen.md", f"the {never} of {len(solved['start', 0, 0])} test problems without")
    mbpp = shown("mbpp-grpo")
    cells = [mbpp[f"max@1+4+16{at}"][k][0] for at in (" at 3e-5", "") for k in ("64", "1")]
    says("research/mbpp.md", "{:+.1f} and {} at 3e-5, {:+.1f} and {:.1f} at 1e-5".format(
        cells[0], f"{cells[1]:.1f}".replace("0.", "."), *cells[2:]))  # fmt: skip
    gsm8k = shown("gsm8k-grpo")["grpo"]
    assert max(value for value, *_ in gsm8k.values()) < 0
    assert [k for k, cell in gsm8k.items() if cell[2] < 0] == ["64"]

    def entropy(study: str, arm: str) -> str:
        lines = evaluations.lines_of(study)
        last = max(line["step"] for line in lines if line["arm"] == arm)
        ends = [x["entropy"] for x in lines if (x["arm"], x["step"]) == (arm, last)]
        return f"{np.mean(ends):.2f}".removeprefix("0")

    ends = [entropy("mbpp-long", arm) for arm in ("start", "grpo", "max@1+4+16")]
    says("research/mbpp.md", "falls from {} to {} with `grpo` and to {} with the".format(*ends))
    arms = ["start", "grpo 2e-6", "maxrl 2e-6", "max@1+4+16 2e-6"]
    ends = [entropy("qwen-gsm8k", arm) for arm in arms]
    claim = "is {} at the start, {} with GRPO, {} with MaxRL and {} with the mixture"
    says("research/qwen.md", claim.format(*ends))
    ends = [entropy("qwen15-leetcode", arm) for arm in (arms[0], arms[3], arms[1])]
    says(
        "research/qwen.md",
        "Entropy per token fell from {} to {} with the mixture and to {} with GRPO.".format(*ends),
    )

    spent = {(x["arm"], x["step"]): x["seconds"] for x in evaluations.lines_of("qwen-leetcode")}
    one, three = ("max@8 2e-6", 65), ("max@8 1e-6, three inner steps, exact", 61)
    each = [spent[arm] / arm[1] for arm in (three, one)]
    fewer = 1 - three[1] * 15 / (one[1] * 16)
    claim = "took {:.0%} fewer rollouts; a step took {:.1f} s instead of {:.1f} s"
    says("research/qwen.md", claim.format(fewer, *each))
    (inner,) = (x for x in evaluations.lines_of("qwen-leetcode") if x["arm"] == three[0])
    share = np.mean(inner["shares"][:10]), np.mean(inner["shares"][10:])
    claim = "share {:.2f} over the first ten steps, later {:.2f}"
    says("research/qwen.md", claim.format(*share).replace("0.", "."))
    long = [x["seconds"] for x in evaluations.lines_of("qwen-leetcode") if x["step"] > 108]
    says("research/qwen.md", f"{round(min(long), -1):.0f} to {round(max(long), -1):.0f} seconds")
    (ahead,) = (x for x in evaluations.lines_of("qwen-leetcode") if "ahead" in x["arm"])
    drawn = [share for share in ahead["shares"] if share < 1]
    claim = "was {:.2f} in the first step drawn ahead and {:.2f} over the last ten; {} of {} steps"
    numbers = drawn[0], np.mean(drawn[-10:]), sum(x < 0.5 for x in drawn), len(drawn)
    says("research/qwen.md", claim.format(*numbers).replace("0.", "."))
    shares = {}
    for name in ("4", "16"):
        arm = f"exact, region below the floor, {name} ahead"
        runs = [x for x in evaluations.lines_of("staleness") if (x["arm"], x["step"]) == (arm, 50)]
        shares[name] = np.mean([share < 0.5 for x in runs for share in x["shares"][4:]])
    claim = "{:.0%} of the steps at 4 ahead and {:.0%} of those at 16 ahead were below the floor"
    says("research/off-policy.md", claim.format(*shares.values()))


def test_claims_on_construction_problems() -> None:
    table = shown("construct-sidon-search")
    one = {run: row for run, row in table.items() if not run.startswith("max@")}
    lines = [x for x in evaluations.lines_of("construct-search") if " kind=sidon" in x["arm"]]
    spent = [line["seconds"] for line in lines if line["step"] == 100]
    says("research/construct.md", f"{min(spent):.0f} to {max(spent):.0f} seconds of training a run")
    ks, found = make.construct_search("sidon")
    ends = list(evaluations.ends_of_runs(found, ks.index(16)))
    means = {key: 100 * value[:, ks.index(16)].mean() for key, value in found.items()}
    lost = [means[run, best] - means[run, last] for run, last, best in ends if run in one]
    claim = f"{sum(x >= 2 for x in lost)} of the {len(one)} one-sample runs lose 2 to 14 points"
    assert (round(min(x for x in lost if x >= 2)), round(max(lost))) == (2, 14)
    says("research/construct.md", claim)
    start, control, _, mixture, _ = shown("construct-sidon").values()
    assert mixture["4"][2] > 0
    page = "recipes/construct-qwen/README.md"
    numbers = start["16"][0], mixture["16"][0], control["16"][0], start["1"][0], mixture["1"][0]
    claim = "goes from .{:.0f} to .{:.0f}, and the best of 14 one-sample runs reaches .{:.0f}; one "
    claim += "sample goes from .{:02.0f} to .{:.0f}, and to .{:.0f}"
    says(page, claim.format(*numbers, control["1"][0]))
    spent = [
        x["seconds"] for x in lines if x["step"] == 100 and x["arm"].startswith("max@1+4+16 k")
    ]
    says(page, f"100 steps took {min(spent):.0f} to {max(spent):.0f} s of training")


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
    assert sentence in page
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


def test_a_run_that_the_limit_stops_goes_on_from_its_checkpoint(
    tmp_path: Path, warm: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", str(warm / "python"))
    recipe = RESULTS.parent / "recipes" / "countdown-tiny" / "run.toml"
    text = STUDY.replace("RECIPE", str(recipe)).replace('"run.steps" = 1', '"run.steps" = 60')
    text = text.replace('every" = 1\n', 'every" = 60\n').replace("[unseen]\ncountdown", "[x]\ny")
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "small.toml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(run, "HERE", tmp_path)
    words = ["small", "--jobs", "1", "--work", str(tmp_path / "w"), "--out", str(tmp_path / "c")]
    monkeypatch.setattr(sys, "argv", ["run.py", *words, "--arms", "grpo*"])
    log = tmp_path / "w" / "small" / "grpo__once-0.log"

    def first_step(*_arguments: object) -> None:  # the limit
        for _ in range(60_000):
            if log.exists() and "step 1/60" in log.read_text(encoding="utf-8"):
                return
            time.sleep(0.01)

    with monkeypatch.context() as stopped:
        wait = run.Study.join
        limits: list[Callable[..., None]] = [wait, wait, first_step]
        stopped.setattr(run.Study, "join", lambda *words: limits.pop()(*words))
        assert run.main() == 1
    assert "1 left, 0 did not end well" in capsys.readouterr().out
    assert not run.kept(tmp_path / "c" / "small.parquet")
    assert run.main() == 0
    assert "step 1/60" not in log.read_text(encoding="utf-8")
    assert [line["step"] for line in run.kept(tmp_path / "c" / "small.parquet")] == [0, 60]


def test_the_comparison_runs_what_the_search_on_construction_problems_picks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_counts = "5"  # of this seed
    words = ["construct-comparison", "--arms", "*kind=sidon*", "--seeds", no_counts, "--dry-run"]
    monkeypatch.setattr(sys, "argv", ["run.py", *words])
    assert run.main() == 0
    lines = capsys.readouterr().out.splitlines()
    picked = make.construct_choices(*make.construct_search("sidon"))
    names = [picked[name][0] for name in picked if name != "one sample, chosen by max@1"]
    for line in lines:
        settings = dict(zip(*[iter(line.split()[3:])] * 2))
        name = f"{settings['--objective']} {settings['--optimizer.learning_rate']}"
        if "--loss.entropy_bonus" in settings:
            name += f", bonus {settings['--loss.entropy_bonus'][1:]}"
        assert name in names or settings["--run.steps"] == "1"
    assert len(lines) == len(names) == 4


def test_what_decides_on_construction_problems_finds_a_gain_and_no_other() -> None:
    rng = np.random.default_rng(0)
    kinds, gains = ("sidon", "cover"), {"control": 0.0, "max@1+4+16": 0.1, "max@16": 0.0}
    picked = {
        (kind, role): {s: rng.normal(0.5, 0.1, (256, 3)) + [0, 0, gain] for s in range(1, 5)}
        for kind in kinds
        for role, gain in gains.items()
    }
    rows = {name: cells for name, *cells in make.decisive(picked, kinds, draws=2000)}
    assert list(rows)[4:] == ["mean, `max@1+4+16`", "mean, `max@16`"]
    for name, cells in rows.items():
        assert [cell.endswith("*") for cell in cells] == [False, False, "1+4" in name]
    for kind in kinds:
        gap = np.mean([picked[kind, "max@16"][s] - picked[kind, "control"][s] for s in range(1, 5)])
        shown = [float(cell.split()[0].replace("−", "-")) for cell in rows[f"{kind}, `max@16`"]]
        assert np.mean(shown) == pytest.approx(gap, abs=0.001)


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
