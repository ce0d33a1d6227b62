"""Makes the tables and figures of research/ from research/counts: python research/make.py

`--check` changes nothing and fails where a table or figure is not what the counts give. With names
of tables it prints them in full: pages show some of the k, and of some tables nothing.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from draw import (
    CONTROLS,
    GUESTS_LINES,
    draw_construct,
    draw_curves,
    draw_front,
    draw_hero,
    draw_real_model,
    draw_staleness,
    draw_tasks,
    picture,
)
from evaluations import (
    Checkpoint,
    Runs,
    best_of_k,
    checkpoints,
    ends_of_runs,
    lines_of,
    passing,
    read,
    run_name,
    shares_of,
)
from tables import beside, difference, number, table, with_intervals
from tiny_studies import guests_figure, guests_tables, selector_tables

from bestofk.evaluation.sign_flips import sign_flip_tests

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
PAGES = (
    *sorted(HERE.glob("*.md")),
    DOCS / "results.md",
    HERE.parent / "README.md",
    *sorted((HERE.parent / "recipes").glob("*/README.md")),
)
NUMBER = re.compile(r"-?\d+\.?\d*(?:e-?\d+)?")


def reward_kinds(exact: Runs) -> Runs:
    """pass@k of arms trained on 0/1 rewards, and of the same trained with partial credit: there a
    problem is solved where the reward is 1."""
    graded = read("closeness", solved=True)
    names = [arm for arm in exact.arms if arm in graded.arms]
    partial = {arm: f"{arm}, partial credit" for arm in names}
    runs = exact.only(*names).joined(graded.only(*names), partial)
    return runs.only(*(name for arm in names for name in (arm, partial[arm])))


def reached(runs: Runs, metric: str, shown: Sequence[int], start: np.ndarray | None = None) -> str:
    """What every arm reached: mean and standard deviation over seeds."""
    places = [runs.ks.index(k) for k in shown]

    def row(name: str, values: np.ndarray) -> list[str]:
        means = values.mean(axis=1)
        cells = [number(means[:, p].mean()) for p in places]
        if len(means) > 1:
            spread = means[:, places].std(axis=0, ddof=1)
            cells = [f"{cell} ± {number(float(s))}" for cell, s in zip(cells, spread, strict=True)]
        return [name, str(len(values)), *cells]

    rows = [
        row("start", runs.start() if start is None else start),
        *(row(f"`{arm}`", runs.last(arm)) for arm in runs.arms),
    ]
    return table(["", "seeds", *(f"{metric}@{k}" for k in shown)], rows)


def against(runs: Runs, other: np.ndarray, metric: str, shown: Sequence[int], but: str = "") -> str:
    """Differences to `other` (seeds, problems, k), with simultaneous 95 % intervals: one max-T test
    over all arms and all k, on problems, each problem's values averaged over seeds."""
    arms = [arm for arm in runs.arms if arm != but]
    gaps = [runs.last(arm).mean(axis=0) - other.mean(axis=0) for arm in arms]
    tests = sign_flip_tests(np.hstack(gaps), 0.95, 20_000, np.random.default_rng(0))
    size = len(runs.ks)
    rows = []
    for place, (arm, gap) in enumerate(zip(arms, gaps, strict=True)):
        own = tests.of(slice(place * size, (place + 1) * size))
        cells = []
        for k in shown:
            at = runs.ks.index(k)
            middle, half = float(gap[:, at].mean()), tests.critical * float(own.error[at])
            cells.append(
                f"{number(middle, True)} [{number(middle - half, True)}, "
                f"{number(middle + half, True)}]{'*' if own.p_value[at] < 0.01 else ''}"
            )
        rows.append([f"`{arm}`", *cells])
    return table(["", *(f"{metric}@{k}" for k in shown)], rows)


def compared(
    name: str, runs: Runs, start: np.ndarray, metric: str, shown: Sequence[int]
) -> dict[str, str]:
    """What every arm reached, and the differences to the start and to GRPO."""
    return {
        name: reached(runs, metric, shown, start=start),
        f"{name}-start": against(runs, start, metric, shown),
        f"{name}-grpo": against(runs, runs.last("grpo"), metric, shown, "grpo"),
    }


def at_equal_pass_1(runs: Runs, k: int, metric: str = "pass") -> str:
    """pass@k (or max@k) above GRPO's own checkpoints at the same pass@1, interpolated between
    evaluations, with bootstrap intervals over problems."""
    at, problems = runs.ks.index(k), runs.start().shape[1]
    counts = np.random.default_rng(0).multinomial(problems, [1 / problems] * problems, 2000)
    weights = np.vstack([np.ones(problems), counts]) / problems  # the problems, then 2,000 draws
    rows = []
    for arm in [arm for arm in runs.arms if arm not in CONTROLS]:
        mine = weights @ runs.last(arm).mean(axis=0)
        cells = []
        for control in CONTROLS:
            path = np.einsum("dp,spk->dsk", weights, runs.path(control)[..., [0, at]])
            rising = np.maximum.accumulate(path[..., 0], axis=1)
            there = [
                np.interp(one, x, y)
                for one, x, y in zip(mine[:, 0], rising, path[..., 1], strict=True)
            ]
            gain = mine[:, at] - there
            low, high = np.quantile(gain[1:], [0.025, 0.975])
            cells.append(f"{number(gain[0], True)} [{number(low, True)}, {number(high, True)}]")
        rows.append([f"`{arm}`", number(mine[0, 0]), number(mine[0, at]), *cells])
    one, many = f"{metric}@1", f"{metric}@{k}"
    head = ["", one, many, *(f"above `{name}` at that {one}" for name in CONTROLS)]
    return table(head, rows)


def curve(runs: Runs, metric: str, k: int) -> str:
    """One k at the evaluations that all arms have, the mean over seeds, and the seconds."""
    at = runs.ks.index(k)
    steps = sorted(set.intersection(*(set(runs.steps(arm)) for arm in runs.arms)))
    rows = [
        [f"`{arm}`", *(number(float(runs.values[arm, s][..., at].mean())) for s in steps),
         f"{runs.seconds[arm, steps[-1]]:.0f} s"]
        for arm in runs.arms
    ]  # fmt: skip
    return table([f"{metric}@{k} after", *(f"{s} batches" for s in steps), "time"], rows)


def tried(study: str, metric: str, shown: Sequence[int], *, solved: bool = False) -> str:
    """Every configuration of a search, one line each."""
    runs = read(study, solved=solved)
    places = [runs.ks.index(k) for k in shown]
    rows = [["start", *(number(float(runs.start()[..., p].mean())) for p in places)]]
    for arm in runs.arms:
        means = runs.last(arm).mean(axis=(0, 1))
        rows.append([f"`{arm}`", *(number(float(means[p])) for p in places)])
    return table(["", *(f"{metric}@{k}" for k in shown)], rows)


def more_tables(small: Runs, closeness: Runs) -> dict[str, str]:
    """Studies whose start or whose control another study has: the same problems and seeds."""
    shown, start = (1, 4, 8, 16, 64, 256), small.start()
    analytical, then = "passk-training@8, analytical", "passk-training@8, then grpo"
    designs = read("designs").joined(small, {"passk-training@8": analytical})
    clean = [arm for arm in designs.arms if "noise" not in arm]
    own = designs.only(*(arm for arm in clean if arm not in ("grpo", then)))
    transfer = designs.only("grpo", then)
    noise = designs.only(
        *(f"{arm}{share}" for arm in ("grpo", "passk-training@8")
          for share in ("", ", analytical", ", 10 % noise", ", 30 % noise", ", 50 % noise"))
    )  # fmt: skip
    names = {arm: f"{arm}, 32 × 32" for arm in ("grpo", "maxrl", "max@8")}
    sizes = read("group-size").joined(small, names)
    by_arm = sorted(sizes.arms, key=lambda arm: (arm.split(",")[0], int(arm.split("× ")[1])))
    real, hot = read("gsm8k-decay"), read("gsm8k")
    others = closeness.only(*(arm for arm in closeness.arms if arm not in CONTROLS))
    above = others.joined(read("closeness-path"), {name: name for name in CONTROLS})
    large, warm = (1, 4, 16, 32, 64, 128), [arm for arm in hot.arms if arm != "start"]
    return (
        code_tables()
        | maze_tables()
        | off_policy_tables(closeness.start())
        | {
            "tried-aim": tried("countdown-aim-screen", "pass", (1, 4, 16, 64, 128, 256)),
            "designs": reached(designs.only(*clean), "pass", shown, start=start),
            "designs-analytical": against(own, own.last(analytical), "pass", shown, analytical),
            "transfer": against(transfer, transfer.last("grpo"), "pass", shown, "grpo"),
            "noise": reached(noise, "pass", shown, start=start),
            "group-size": reached(sizes.only(*by_arm), "pass", shown, start=start),
            "neighbours": reached(read("neighbours"), "pass", shown, start=start),
            "maze-neighbours": reached(
                read("maze-neighbours"), "pass", shown, start=read("maze").start()
            ),
            "closeness-neighbours": reached(
                read("closeness-neighbours"), "max", shown, start=closeness.start()
            ),
            "closeness-equal": at_equal_pass_1(above, 64, "max"),
            "reward-kinds": reached(reward_kinds(small), "pass", shown, start=start),
            "gsm8k": reached(real, "pass", large),
            "gsm8k-start": against(real, real.start(), "pass", large),
            "gsm8k-grpo": against(real, real.last("grpo at 1e-5"), "pass", large, "grpo at 1e-5"),
            "gsm8k-hot": reached(hot.only(*warm), "pass", large, hot.values["start", 0]),
            "tried-gsm8k": tried("gsm8k-decay-screen", "pass", (1, 4, 16, 64)),
            "tried-gsm8k-hot": tried("gsm8k-screen", "pass", (1, 4, 16, 64)),
        }
    )


def maze_tables() -> dict[str, str]:
    """Mazes with groups of 128, for 150 and for 450 steps."""
    texts: dict[str, str] = {}
    shown = (1, 4, 8, 16, 64, 256)
    for study in ("maze-n128", "maze-long"):
        mazes = read(study)
        texts |= compared(study, mazes, mazes.start(), "pass", shown)
        texts[f"{study}-equal"] = at_equal_pass_1(mazes, 64)
        texts[f"tried-{study}"] = tried(f"{study}-screen", "pass", shown)
    return texts


def off_policy_tables(start: np.ndarray) -> dict[str, str]:
    """Several optimiser steps a batch: a constant rate, and one that falls to 0."""
    shown, passes, falling = (1, 4, 8, 16, 64, 256), read("off-policy"), read("off-policy-decay")
    texts = {
        "off-policy": reached(passes, "max", shown, start=start),
        "off-policy-one": against(passes, passes.last("1 step"), "max", shown, "1 step"),
        "off-policy-curves": curve(read("off-policy-curves"), "max", 8),
        "off-policy-decay": reached(falling, "max", shown, start=start),
        "staleness": staleness_table(),
        "tried-off-policy-large": curve(read("off-policy-large-screen"), "max", 8),
        "tried-off-policy-decay": tried("off-policy-decay-screen", "max", (1, 4, 8, 16, 64)),
    }
    for batches, others in ((50, ("50 ", "30 ")), (30, ("30 ",)), (20, ("20 ", "12 "))):
        one = f"{batches} batches, 1 step"
        own = falling.only(*(arm for arm in falling.arms if arm.startswith(others)))
        texts[f"off-policy-decay-{batches}"] = against(own, own.last(one), "max", shown, one)
    return texts


def staleness_table(control: str = "on policy", k: int = 8, limit: float = 0.03) -> str:
    """Each arm at the end: max@1, 8 and 64, pass@64, entropy; its loss of max@8; and the effective
    share over the steps, where samples were weighed."""
    runs, solved = read("staleness"), read("staleness", solved=True)
    lines = lines_of("staleness")
    last = max(line["step"] for line in lines)
    before = [runs.start()[..., runs.ks.index(j)].mean() for j in (1, 8, 64)]
    before += [solved.start()[..., solved.ks.index(64)].mean()]
    before += [np.mean([line["entropy"] for line in lines if line["step"] == 0])]
    stretches = [slice(4, 20), slice(20, 35), slice(35, 50)]
    rows = [["start", *(number(float(value)) for value in before), "", *([""] * len(stretches))]]
    for arm in runs.arms:
        ends = [each for each in lines if (each["arm"], each["step"]) == (arm, last)]
        spread = [each["entropy"] for each in ends]
        shares = [each["shares"] for each in ends if each["shares"]]
        over = [f"{np.mean([one[part] for one in shares]):.2f}".removeprefix("0") if shares else ""
                for part in stretches]  # fmt: skip
        lost = (runs.last(control) - runs.last(arm))[..., runs.ks.index(k)].mean(axis=1)
        error = float(lost.std(ddof=1)) / len(lost) ** 0.5
        mark = "**" if lost.mean() > limit else ""
        best = runs.last(arm).mean(axis=(0, 1))
        found = [
            *(best[runs.ks.index(j)] for j in (1, 8, 64)),
            solved.last(arm)[..., solved.ks.index(64)].mean(),
            np.mean(spread),
        ]
        loss = f"{mark}{number(float(lost.mean()), True)}{mark} ± {number(error)}"
        values = [number(float(x)) for x in found]
        rows.append([f"`{arm}`", *values, loss * (arm != control), *over])
    head = ["", "max@1", "max@8", "max@64", "pass@64", "entropy", f"max@{k} lost"]
    head += [f"share, steps {part.start + 1}–{part.stop}" for part in stretches]
    return table(head, rows)


def code_tables() -> dict[str, str]:
    """MBPP, and problems that no arm was trained on: solutions, and the fraction of tests."""
    texts: dict[str, str] = {}
    own, unseen = (1, 4, 16, 32, 64, 128), (1, 2, 4, 8, 16, 32)
    for name, study, of, shown in (
        ("mbpp", "mbpp-long", "mbpp-long", own),
        ("mbppplus", "mbpp-long-mbppplus", "mbpp-long", unseen),
        ("humaneval", "mbpp-long-humaneval", "mbpp-long", unseen),
        ("mbpp-short", "mbpp", "mbpp", own),
        ("humaneval-short", "mbpp-humaneval", "mbpp", unseen),
    ):
        for metric, solved in (("pass", True), ("max", False)):
            start, trained = code_runs(study, of, solved)
            mark = name if solved else f"{name}-fraction"
            texts |= compared(mark, trained, start, metric, shown)
    texts |= qwen_tables((1, 4, 8, 16, 64, 128))
    _, trained = code_runs("mbpp-long", "mbpp-long", solved=True)
    small = "grpo at 1e-5"
    return texts | {
        "mbpp-rate": against(trained, trained.last(small), "pass", own, small),
        "tried-mbpp": tried("mbpp-screen", "pass", (1, 4, 16, 64, 128), solved=True),
    }


QWEN = ("grpo", "max@1+4+16")
RATES = ("4e-6", "2e-6", "1e-6")
SHORT, FIFTH = 34, range(61, 66)
"""Steps at which the runs of the design's third and fifth part ended."""
PLAIN, MIXED = (f"{arm} 2e-6" for arm in QWEN)
AHEAD = f"{MIXED}, one step ahead"
SHORT_PAIRS = {
    "the mixture − GRPO, seed 1": (MIXED, PLAIN),
    "one step ahead − GRPO": (AHEAD, PLAIN),
    "one step ahead − the mixture": (AHEAD, MIXED),
}
"""One step ahead has another seed than its partners."""
ONE, EXACT = "max@8 2e-6", "max@8 1e-6, three inner steps, exact"
FIRST, CHEN, SLOW = EXACT.replace("exact", "first order"), "passk-training@8 2e-6", "grpo 1e-6"
FIFTH_PAIRS = {
    "three inner steps, exact − one step": (EXACT, ONE),
    "three inner steps, exact − first order": (EXACT, FIRST),
    "passk-training@8 − max@8": (CHEN, ONE),
    "max@8 − GRPO at 1e-6": (ONE, SLOW),
    "three inner steps, exact − GRPO at 1e-6": (EXACT, SLOW),
    "passk-training@8 − GRPO at 1e-6": (CHEN, SLOW),
}
"""GRPO at 1e-6 with two seeds, the others with one."""
SIXTH_PAIRS = {
    "GRPO − start": (PLAIN, "start"),
    "the mixture − start": (MIXED, "start"),
    "the mixture − GRPO": (MIXED, PLAIN),
}
MAXRL_PAIRS = {
    "MaxRL − start": ("maxrl 2e-6", "start"),
    "MaxRL − GRPO": ("maxrl 2e-6", PLAIN),
    "the mixture − MaxRL": (MIXED, "maxrl 2e-6"),
}


def qwen_ends(solved: bool) -> tuple[np.ndarray, Runs, dict[str, dict[int, np.ndarray]]]:
    """The start, the trained arms where they ended, and the same by arm and seed."""
    ks, every = checkpoints("qwen-leetcode", solved=solved)
    long = {key: v for key, v in every.items() if key[2] not in (SHORT, *FIFTH)}
    ends = last_of_seeds(long)
    return np.stack([*ends["start"].values()]), of_seeds(ks, ends), ends


def qwen_means(solved: bool) -> dict[str, np.ndarray]:
    """(1, problems, k) of each trained arm at its end, over all seeds that there are: two of GRPO's
    three at its lowest rate ended early."""
    ended = qwen_ends(solved)[1]
    mean = {arm: ended.last(arm).mean(axis=0, keepdims=True) for arm in ended.arms}
    slow = last_of_seeds(checkpoints("qwen-leetcode", solved=solved)[1])[SLOW]
    return mean | {SLOW: np.mean([*slow.values()], axis=0)[None]}


def qwen_tables(shown: Sequence[int]) -> dict[str, str]:
    """Two objectives at three rates: where they end, what lies between them, and every checkpoint
    of the others against GRPO's front; then the short runs, and a task that was not trained on."""
    texts: dict[str, str] = {}
    for mark, metric, solved in (("qwen", "pass", True), ("qwen-fraction", "max", False)):
        start, ended, ends = qwen_ends(solved)
        gaps: dict[str, np.ndarray] = {}
        for rate in RATES:
            gap = between(ends, f"{QWEN[1]} {rate}", f"{QWEN[0]} {rate}")
            gaps[f"{rate}, {len(gap)} seeds" if len(gap) > 1 else rate] = gap
        later = {
            "2e-6, seeds 1 and 2 alone": between(ends, MIXED, PLAIN)[1:],
            "mean of the rates": np.mean([g.mean(axis=0, keepdims=True) for g in gaps.values()], 0),
        }
        mean = qwen_means(solved)
        for name, arm in (("GRPO", QWEN[0]), ("the mixture", QWEN[1])):
            for high, low in pairwise(RATES):
                later[f"{name}, {low} − {high}"] = mean[f"{arm} {low}"] - mean[f"{arm} {high}"]
        texts |= {
            mark: reached(ended, metric, shown, start=start),
            f"{mark}-start": against(ended, start, metric, shown),
            f"{mark}-grpo": differences(ended.ks, gaps, metric, shown),
            f"{mark}-after": differences(ended.ks, later, metric, shown),
        }
    start, ended, _ = qwen_ends(solved=True)
    ks, every = checkpoints("qwen-leetcode", solved=True)
    unsolved = (start[:, :, ks.index(128)] == 0).all(axis=0)
    hard = {arm: values[:, unsolved] for arm, values in qwen_means(solved=True).items()}
    places = [ks.index(k) for k in shown]
    solved_now = [
        [f"`{arm}`", *map(number, v.mean(axis=(0, 1))[places])] for arm, v in hard.items()
    ]
    hard_pairs = {
        "the mixture − GRPO, both at 2e-6": hard[MIXED] - hard[PLAIN],
        "the mixture at 2e-6 − GRPO at 1e-6": hard[MIXED] - hard[SLOW],
    }
    short = {arm: values for (arm, _, step), values in every.items() if step == SHORT}
    short_runs = of_seeds(ks, {arm: {0: values} for arm, values in short.items()})
    pairs = {n: (short[a] - short[b])[None] for n, (a, b) in SHORT_PAIRS.items()}
    texts |= {
        "qwen-checkpoints": above_front(ks, every, 64),
        "qwen-unsolved": table(["", *(f"pass@{k}" for k in shown)], solved_now),
        "qwen-unsolved-pairs": differences(ks, hard_pairs, "pass", shown),
        "qwen-short": reached(short_runs, "pass", shown, start=start),
        "qwen-short-pairs": differences(ks, pairs, "pass", shown),
    }
    ks, found = checkpoints("qwen-leetcode-humaneval", solved=True, of="qwen-leetcode")
    gap = between(last_of_seeds(found), MIXED, PLAIN)
    unseen = differences(ks, {"HumanEval": gap}, "pass", (1, 4, 16, 32, 64))
    return texts | {"qwen-humaneval": unseen} | chosen_tables(shown) | qwen_fifth_tables(shown)


def chosen_tables(shown: Sequence[int]) -> dict[str, str]:
    """The design's rule without validation: a random half of the test problems chooses the rate of
    each objective by its mean of pass@1 and pass@64, and the other half compares. The difference of
    a problem is the mean over the halves that did not contain it."""
    ks, means = qwen_ends(solved=True)[1].ks, qwen_means(solved=True)
    places = [ks.index(1), ks.index(64)]
    score = {arm: values[0][:, places].mean(axis=1) for arm, values in means.items()}
    problems, draws, random = len(score[SLOW]), 1000, np.random.default_rng(0)
    choices: list[tuple[np.ndarray, list[str]]] = []
    for _ in range(draws):
        choosing = random.permutation(problems) < problems // 2
        merit = {arm: values[choosing].mean() for arm, values in score.items()}
        best = [max((f"{arm} {rate}" for rate in RATES), key=merit.__getitem__) for arm in QWEN]
        choices.append((~choosing[:, None], best))
    times = Counter(arm for _, best in choices for arm in best)
    rows = [
        [f"`{arm}`", *(f"{times[f'{arm} {rate}'] / draws:.0%}" for rate in RATES)] for arm in QWEN
    ]
    gaps = [where * (means[mixed] - means[plain]) for where, (plain, mixed) in choices]
    gap = np.sum(gaps, axis=0) / np.sum([where for where, _ in choices], axis=0)
    return {
        "qwen-chosen": table(["", *RATES], rows),
        "qwen-chosen-pairs": differences(ks, {"the mixture − GRPO": gap}, "pass", shown),
    }


def qwen_fifth_tables(shown: Sequence[int]) -> dict[str, str]:
    """Other objectives and inner steps: where they ended, what lies between them, unseen tasks."""
    texts: dict[str, str] = {}
    for mark, metric, solved in (
        ("qwen-fifth", "pass", True),
        ("qwen-fifth-fraction", "max", False),
    ):
        ks, every = checkpoints("qwen-leetcode", solved=solved)
        ends = last_of_seeds({key: v for key, v in every.items() if key[2] in (0, *FIFTH)})
        mean = {arm: np.stack([*by.values()]).mean(axis=0)[None] for arm, by in ends.items()}
        start = np.stack([*ends["start"].values()])
        pairs = {name: mean[a] - mean[b] for name, (a, b) in FIFTH_PAIRS.items()}
        long = qwen_means(solved)
        pairs["max@8 − GRPO at 2e-6 and step 111 to 120"] = mean[ONE] - long[PLAIN]
        best_rates = {"the mixture at 2e-6 − GRPO at 1e-6": long[MIXED] - long[SLOW]}
        texts |= {
            mark: reached(of_seeds(ks, ends), metric, shown, start=start),
            f"{mark}-pairs": differences(ks, pairs, metric, shown),
            f"{mark}-rates": differences(ks, best_rates, metric, shown),
        }
    for task, up_to in (("humaneval", 64), ("mbpp", 32)):
        ks, found = checkpoints(f"qwen-leetcode-{task}", solved=True, of="qwen-leetcode")
        ends = last_of_seeds(found)
        start, trained = np.stack([*ends["start"].values()]), of_seeds(ks, ends)
        some = [k for k in (1, 4, 8, 16, 32, 64) if k <= up_to]
        texts[f"qwen-unseen-{task}"] = reached(trained, "pass", some, start=start)
        texts[f"qwen-unseen-{task}-start"] = against(trained, start, "pass", some)
        mean = {arm: trained.last(arm).mean(axis=0)[None] for arm in trained.arms}
        pairs = {name: mean[a] - mean[b] for name, (a, b) in FIFTH_PAIRS.items()}
        texts[f"qwen-unseen-{task}-pairs"] = differences(ks, pairs, "pass", some)
    return texts | qwen_sixth_tables(shown) | qwen_eighth_tables()


def qwen_eighth_tables() -> dict[str, str]:
    """GRPO and the mixture on MBPP after 57 steps; the last two pairs are with the fifth part. Then
    all arms there against both evaluations of the start together."""
    shown = (1, 4, 8, 16, 32)
    studies = "qwen-leetcode-mbpp", "qwen-leetcode-mbpp-seed3"
    (ks, found), (_, new) = (checkpoints(s, solved=True, of="qwen-leetcode") for s in studies)
    fifth, ends = last_of_seeds(found), last_of_seeds(new)
    mixed = ends[MIXED][3][None]
    gaps = {name: between(ends, arm, other) for name, (arm, other) in SIXTH_PAIRS.items()}
    gaps["the mixture − GRPO at 1e-6"] = mixed - np.mean([*fifth[SLOW].values()], axis=0)
    gaps["passk-training@8 − the mixture"] = fifth[CHEN][0] - mixed
    lines = [line for study in studies for line in lines_of(study, "qwen-leetcode")]
    starts = [passing(line["counts"]) for line in lines if line["arm"] == "start"]
    twice = best_of_k(np.sum(starts, axis=0).tolist(), shares_of(64, ks))[None]
    return {
        "qwen-eighth-start": against(of_seeds(ks, fifth | ends), twice, "pass", shown),
        "qwen-eighth": reached(of_seeds(ks, ends), "pass", shown, start=ends["start"][3][None]),
        "qwen-eighth-pairs": differences(ks, gaps, "pass", shown),
    }


def qwen_sixth_tables(shown: Sequence[int]) -> dict[str, str]:
    """Three times the weights, and a task with 0/1 rewards: where the arms ended, and what lies
    between them and the start."""
    texts: dict[str, str] = {}
    for mark, study, metric, own, pairs in (
        ("qwen15", "qwen15-leetcode", "pass", shown, SIXTH_PAIRS),
        ("qwen15-fraction", "qwen15-leetcode", "max", shown, SIXTH_PAIRS),
        ("qwen15-mbpp", "qwen15-leetcode-mbpp", "pass", (1, 4, 8, 16, 32), SIXTH_PAIRS),
        ("qwen-gsm8k", "qwen-gsm8k", "pass", (1, 4, 8, 16, 32, 64), SIXTH_PAIRS | MAXRL_PAIRS),
    ):
        ks, found = checkpoints(study, solved=metric == "pass", of=study.removesuffix("-mbpp"))
        ends = last_of_seeds(found)
        gaps = {name: between(ends, arm, other) for name, (arm, other) in pairs.items()}
        start = np.stack([*ends["start"].values()])
        texts[mark] = reached(of_seeds(ks, ends), metric, own, start=start)
        texts[f"{mark}-pairs"] = differences(ks, gaps, metric, own)
    return texts


def last_of_seeds(found: dict[Checkpoint, np.ndarray]) -> dict[str, dict[int, np.ndarray]]:
    """(problems, k) by arm and seed, at the seed's last evaluation; first attempts are left out."""
    ends: dict[str, dict[int, np.ndarray]] = {}
    for (arm, seed, _), values in found.items():
        if "attempt" not in arm:
            ends.setdefault(arm, {})[seed] = values
    return ends


def of_seeds(ks: tuple[int, ...], ends: dict[str, dict[int, np.ndarray]]) -> Runs:
    """The ends of the trained arms."""
    trained = {(arm, 0): np.stack([*by.values()]) for arm, by in ends.items() if arm != "start"}
    return Runs(ks, trained, {})


def between(ends: dict[str, dict[int, np.ndarray]], arm: str, other: str) -> np.ndarray:
    """(seeds, problems, k): an arm minus another, with the seeds that both have."""
    first, second = ends[arm], ends[other]
    return np.stack([first[seed] - second[seed] for seed in first if seed in second])


def differences(
    ks: tuple[int, ...], gaps: dict[str, np.ndarray], metric: str, shown: Sequence[int]
) -> str:
    """A row for each difference (seeds, problems, k), as `against` gives them."""
    runs = Runs(ks, {(name, 0): gap for name, gap in gaps.items()}, {})
    return against(runs, np.zeros_like(next(iter(gaps.values()))), metric, shown)


def above_front(ks: tuple[int, ...], points: dict[Checkpoint, np.ndarray], k: int) -> str:
    """Every checkpoint: pass@1 and pass@k; those of other arms minus GRPO's front at their pass@1:
    the polyline through the start and GRPO's checkpoints in the order of pass@1, each raised to the
    best pass@k of those with more pass@1. Bootstrap intervals over problems."""
    at, problems = ks.index(k), len(next(iter(points.values())))
    counts = np.random.default_rng(0).multinomial(problems, [1 / problems] * problems, 2000)
    weights = np.vstack([np.ones(problems), counts]) / problems
    found = {key: weights @ values[:, [0, at]] for key, values in points.items()}
    on_front = {key for key in found if key[0].startswith(("start", QWEN[0]))}
    front = np.stack([v for key, v in found.items() if key in on_front], axis=1)
    rows = []
    for (arm, seed, step), mine in found.items():
        cell = ""
        if (arm, seed, step) not in on_front:
            there = []
            for one, path in zip(mine[:, 0], front, strict=True):
                x, y = path[np.argsort(path[:, 0])].T
                best = np.maximum.accumulate(y[::-1])[::-1]  # no checkpoint is dominated
                there.append(np.interp(one, x, best, right=np.nan))
            gain = mine[:, 1] - there
            if not np.isnan(gain[0]):  # beyond GRPO's pass@1 there is no front
                low, high = np.nanquantile(gain[1:], [0.025, 0.975])
                cell = f"{number(gain[0], True)} [{number(low, True)}, {number(high, True)}]"
        name = arm if arm == "start" else f"`{arm}`" + f", seed {seed}" * (seed > 0)
        rows.append([name, str(step), number(mine[0, 0]), number(mine[0, 1]), cell])
    head = ["", "step", "pass@1", f"pass@{k}", "above GRPO's front at that pass@1"]
    return table(head, rows)


TASK_ROWS: dict[str, tuple[str, str, tuple[str, ...], str]] = {
    "Countdown, .2M": ("countdown", "", CONTROLS, "max@1+16+112, decay"),
    "mazes, .2M": ("maze-n128", "", CONTROLS, "max@1+16+64"),
    "MBPP, 135M": ("mbpp-long", "", ("grpo", "grpo at 1e-5"), "max@1+4+16"),
    "GSM8K, 135M": ("gsm8k-decay", "", ("grpo", "grpo at 1e-5"), "maxrl"),
    "LeetCode, .5B": ("qwen-leetcode", "", (PLAIN, SLOW), MIXED),
    "LeetCode, 1.5B (one rate)": ("qwen15-leetcode", "", (PLAIN,), MIXED),
    "MBPP, not trained on, .5B": ("qwen-leetcode-mbpp-seed3", "qwen-leetcode", (PLAIN,), MIXED),
    "MBPP, not trained on, 1.5B": ("qwen15-leetcode-mbpp", "qwen15-leetcode", (PLAIN,), MIXED),
    "HumanEval, not trained on, .5B": (
        "qwen-leetcode-humaneval", "qwen-leetcode", (PLAIN, SLOW), MIXED,
    ),
    "GSM8K, .5B (one rate, 56 steps)": ("qwen-gsm8k", "", (PLAIN,), MIXED),
}  # fmt: skip
"""Of every task with 0/1 verdicts: study, the study that trained, GRPO's arms, the arm for k."""


def by_task() -> str:
    """Every task at k = 16 and 1: GRPO at the rate with the higher pass@16 on the test problems,
    and an objective for k; the intervals of a row hold for both of its k together."""
    rows: list[tuple[float, list[str]]] = []
    for name, (study, of, plain_arms, mixed) in TASK_ROWS.items():
        ks, found = checkpoints(study, solved=True, of=of)
        seeds = last_of_seeds(found)
        means = {arm: np.mean([*by.values()], axis=0) for arm, by in seeds.items()}
        if study == "qwen-leetcode":  # its short runs are left out
            means |= {arm: values[0] for arm, values in qwen_means(solved=True).items()}
        begun = [values for (_, _, step), values in found.items() if step == 0]
        start = means["start"] if "start" in means else np.mean(begun, axis=0)
        at = [ks.index(16), ks.index(1)]
        plain = max(plain_arms, key=lambda arm: means[arm][:, at[0]].mean())
        gaps = (means[mixed] - means[plain])[:, at]
        cells = [number(values[:, at[0]].mean()) for values in (start, means[plain], means[mixed])]
        cells += with_intervals([gaps])[0]
        rows.append((gaps[:, 0].mean(), [name, *cells, f"`{plain}`", f"`{mixed}`"]))
    rows.sort(key=lambda row: -row[0])
    head = ["", "start", "GRPO", "for k", "for k − GRPO, pass@16", "pass@1", "GRPO's arm", "for k"]
    return table(head, [row for _, row in rows])


def construct_search(kind: str) -> tuple[tuple[int, ...], dict[tuple[str, int], np.ndarray]]:
    """The k, and (problems, k) of every evaluation by run and step, those of cut runs too."""
    ks, found = checkpoints("construct-search")
    whole = {arm for arm, *_ in found}
    _, ended_early = checkpoints("construct-search-cut", of="construct-search")
    found = found | {key: each for key, each in ended_early.items() if key[0] not in whole}
    mark = f" kind={kind}"
    return ks, {
        (run_name(arm), step): values
        for (arm, _, step), values in found.items()
        if mark + " " in arm or (arm == f"start{mark}" and step == 0)
    }


def chosen_by(found: dict[tuple[str, int], np.ndarray], at: int, *names: str) -> tuple[str, int]:
    """The run and the step with the highest mean at one k, of these objectives; "start" has one."""
    mine = {key: values[:, at].mean() for key, values in found.items() if key[0].startswith(names)}
    return max(mine, key=lambda key: (mine[key], -key[1]))


ONE_SAMPLE = ("mean ", "grpo ")
FOUR = (*ONE_SAMPLE, "max@1+4+16 ", "max@16 ")


def construct_choices(
    ks: tuple[int, ...], found: dict[tuple[str, int], np.ndarray]
) -> dict[str, tuple[str, int]]:
    """By the name of the row: the checkpoint that validation picks."""
    last = ks.index(16)
    return {
        "start": chosen_by(found, last, "start"),
        "one sample, chosen by max@16": chosen_by(found, last, *ONE_SAMPLE),
        "one sample, chosen by max@1": chosen_by(found, 0, *ONE_SAMPLE),
        "`max@1+4+16`": chosen_by(found, last, "max@1+"),
        "`max@16`": chosen_by(found, last, "max@16"),
    }


def construct_tables(kind: str) -> dict[str, str]:
    """The search on a kind of construction problem: every run, and the checkpoints it picks."""
    ks, found = construct_search(kind)
    if not all(any(run.startswith(name) for run, _ in found) for name in ("start", *FOUR)):
        return {}
    rows = []
    for run, last, best in ends_of_runs(found, ks.index(16)):
        ends, cells = (f"{last}{' (cut)' if last < 100 else ''}", str(best)), []
        for end, step in zip(ends, (last, best), strict=True):
            cells += [end, *(number(found[run, step][:, ks.index(k)].mean()) for k in (1, 16))]
        rows.append([f"`{run}`", *cells])
    head = ["run", "last step", "max@1", "max@16", "best step", "max@1", "max@16"]
    picked = construct_choices(ks, found)
    shown = [ks.index(k) for k in (1, 4, 16)]
    values = {
        (name, f"`{run}`, step {step}" if step else ""): found[run, step][:, shown]
        for name, (run, step) in picked.items()
    }
    return {
        f"construct-{kind}-search": table(head, rows),
        f"construct-{kind}": table(
            ["", "checkpoint", "max@1", "max@4", "max@16"],
            beside(values, found[picked["one sample, chosen by max@16"]][:, shown]),
        ),
    }


def construct_tested() -> dict[str, str]:
    """By kind, each run with a new seed, at the step that validation picks and at the end; then the
    differences that the design names."""
    ks, found = checkpoints("construct-comparison-test", of="construct-comparison")
    at = [ks.index(k) for k in (1, 4, 16)]
    rows: dict[str, list[list[str]]] = {}
    picked: dict[tuple[str, str], dict[int, np.ndarray]] = {}
    for (arm, seed, step), values in found.items():
        kind, run = arm.partition("kind=")[2].split()[0], run_name(arm)
        begun = run == "start"
        where = [run, ""] if begun else [f"`{run}`, step {step}", str(seed)]
        rows.setdefault(kind, []).append([*where, *map(number, values[:, at].mean(axis=0))])
        role = "control" if run.startswith(ONE_SAMPLE) else run.split()[0]
        picked.setdefault((kind, role), {}).setdefault(seed, values[:, at])  # the first is the best
    heads = ["max@1", "max@4", "max@16"]
    texts = {
        f"construct-{kind}-test": table(["", "seed", *heads], each) for kind, each in rows.items()
    }
    for name, kinds in (("decides", ("independent", "sidon", "cover")), ("cut", ("cut",))):
        there = [kind for kind in kinds if {(kind, role) for role in ROLES} <= picked.keys()]
        if there:
            head = ["minus the control", *heads]
            texts[f"construct-{name}"] = table(head, decisive(picked, there))
    return texts


FOR_K = ("max@1+4+16", "max@16")
ROLES = ("control", *FOR_K)


def decisive(
    picked: dict[tuple[str, str], dict[int, np.ndarray]], kinds: Sequence[str], draws: int = 10_000
) -> list[list[str]]:
    """Both arms for k minus the control, on each kind and on their mean: a bootstrap over problems
    within kinds and over seeds, simultaneous over the rows of a column."""
    rng = np.random.default_rng(0)

    def resampled(size: int) -> np.ndarray:
        """Weights of each as they are, then of bootstrap draws."""
        drawn = rng.multinomial(size, [1 / size] * size, draws)
        return np.vstack([np.ones(size), drawn]) / size

    gaps: dict[str, np.ndarray] = {}
    for kind in kinds:
        problems = resampled(len(next(iter(picked[kind, "control"].values()))))
        means = {}
        for role in ROLES:
            seeds = np.stack([*picked[kind, role].values()])
            means[role] = np.einsum("ds,spk,dp->dk", resampled(len(seeds)), seeds, problems)
        gaps |= {f"{kind}, `{role}`": means[role] - means["control"] for role in FOR_K}
    if len(kinds) > 1:
        for role in FOR_K:
            each = [gap for name, gap in gaps.items() if name.endswith(f"`{role}`")]
            gaps[f"mean, `{role}`"] = np.mean(each, axis=0)
    values = np.stack([*gaps.values()])
    found, moved = values[:, 0], np.abs(values[:, 1:] - values[:, :1])
    error = values[:, 1:].std(axis=1)
    critical = np.quantile((moved / error[:, None]).max(axis=0), 0.95, axis=0)
    return [
        [name, *(difference(float(g), float(h)) for g, h in zip(gap, half, strict=True))]
        for name, gap, half in zip(gaps, found, critical * error, strict=True)
    ]


def chosen_by_shown_test() -> dict[str, str]:
    """MBPP: one sample, the choice of 8 by the shown test, a perfect choice of 8; minus GRPO."""
    ks, found = checkpoints("mbpp-selection", solved=True)
    chosen = checkpoints("mbpp-selection-shown", of="mbpp-selection")[1]
    at = [ks.index(k) for k in (1, 8)]
    values = {
        (f"`{key[0]}`",): np.insert(each[:, at], 1, chosen[key][:, 0], axis=1)
        for key, each in found.items()
    }
    head = ["trained for", "one sample", "best of 8 by the shown test", "best of 8, perfect choice"]
    return {"mbpp-selection": table(head, beside(values, values["`grpo`",]))}


def code_runs(study: str, of: str, solved: bool) -> tuple[np.ndarray, Runs]:
    """The start, an arm of its own that learned nothing, and the arms that were trained."""
    runs = read(study, solved=solved, of=of)
    return runs.last("start"), runs.only(*(arm for arm in runs.arms if arm != "start"))


def tables() -> dict[str, str]:
    """By the name of the mark in the page."""
    texts = {}
    front = read("countdown")
    shown = (1, 4, 16, 64, 128, 256)
    texts["front"] = reached(front, "pass", shown)
    texts["front-start"] = against(front, front.start(), "pass", shown)
    texts["front-grpo"] = against(front, front.last("grpo"), "pass", shown, "grpo")
    texts["front-equal"] = at_equal_pass_1(front, 64)
    small = read("countdown-n32")
    texts["by-task"] = by_task()
    for kind in ("sidon", "cover", "independent", "cut"):
        texts |= construct_tables(kind)
    texts |= construct_tested() | chosen_by_shown_test() | guests_tables() | selector_tables()
    texts["n32"] = reached(small, "pass", shown)
    texts["n32-grpo"] = against(small, small.last("grpo"), "pass", shown, "grpo")
    texts["tried-n128"] = tried("countdown-n128-screen", "pass", shown)
    texts["tried-n32"] = tried("countdown-screen", "pass", (1, 4, 16, 64, 128))
    texts["tried-maze"] = tried("maze-screen", "pass", (1, 4, 16, 64, 128))
    texts["tried-closeness"] = tried("closeness-screen", "max", (1, 4, 8, 16, 64, 128))
    for name, metric in (("maze", "pass"), ("closeness", "max"), ("closeness-n128", "max")):
        runs = read(name)
        texts |= compared(name, runs, runs.start(), metric, (1, 4, 8, 16, 64, 256))
    return texts | more_tables(small, read("closeness"))


def columns(text: str, ks: set[str]) -> str:
    """The table with those of its columns that are of one of these k, or of no k."""
    rows = [line.strip("|").split("|") for line in text.splitlines()]
    heads = [re.search(r"@(\d+)", head) for head in rows[0]]
    shown = [i for i, head in enumerate(heads) if head is None or head[1] in ks]
    return "\n".join("|" + "|".join(row[i] for i in shown) + "|" for row in rows)


def filled(page: str, texts: dict[str, str]) -> str:
    """The page with every table between its marks, which may name the k that are shown."""

    def made(mark: re.Match[str]) -> str:
        if mark["name"] not in texts:
            return mark[0]
        text = texts[mark["name"]]
        if mark["ks"]:
            text = columns(text, set(re.findall(r"\d+", mark["ks"])))
        return f"{mark['begin']}\n{text}\n{mark['end']}"

    begin = r"(?P<begin><!-- results: (?P<name>[\w-]+)(?P<ks>; k = [\d, ]+)? -->)"
    return re.sub(rf"{begin}.*?(?P<end><!-- /results: (?P=name) -->)", made, page, flags=re.S)


def same(old: str, new: str, suffix: str) -> bool:
    """Whether two texts are equal; pictures, whether they show the same to a hundredth of a point
    (the last digits of coordinates depend on the processor)."""
    if suffix != ".svg":
        return old == new
    shown = [re.sub(r'(?:id="|url\(#|href="#)[^")]*', "", text) for text in (old, new)]
    (words, numbers), (others, values) = (
        (NUMBER.sub("", text), np.array(NUMBER.findall(text), dtype=float)) for text in shown
    )
    if words != others or len(numbers) != len(values):
        return False
    return np.allclose(numbers, values, rtol=0, atol=0.01)


def figures() -> list[tuple[Any, ...]]:
    """Of each figure: its file, the function that draws it, and what that is given."""
    tiny, (before, qwen, _) = read("countdown"), qwen_ends(solved=True)
    real, (start, programs) = read("gsm8k-decay"), code_runs("mbpp-long", "mbpp-long", solved=True)
    ks, found = construct_search("sidon")
    here, docs = HERE / "images", DOCS / "images"
    return [
        (docs / "hero.svg", draw_hero, (tiny, tiny.start()), (qwen, before)),
        (docs / "construct.svg", draw_construct, ks, found, construct_choices(ks, found)),
        (here / "guests.svg", draw_construct, *guests_figure(), GUESTS_LINES),
        (here / "front.svg", draw_front, tiny),
        (here / "tasks.svg", draw_tasks, read("maze"), read("closeness")),
        (here / "tasks-n128.svg", draw_tasks, read("maze-n128"), read("closeness-n128")),
        (here / "curves.svg", draw_curves, read("off-policy-curves"), read("off-policy-decay"), 8),
        (docs / "staleness.svg", draw_staleness, read("staleness"), "on policy"),
        (here / "gsm8k.svg", draw_real_model, real, real.start()),
        (here / "mbpp.svg", draw_real_model, programs, start),
    ]


def main() -> int:
    named, stale = sys.argv[1:], []
    check = named == ["--check"]
    texts = tables()
    if named and not check:
        if unknown := [name for name in named if name not in texts]:
            print(f"no table {', '.join(unknown)}; there are {', '.join(sorted(texts))}")
        print("\n\n".join(texts[name] for name in named if name in texts))
        return int(bool(unknown))
    new = {page: filled(page.read_text(encoding="utf-8"), texts) for page in PAGES if page.exists()}
    for path, draw, *shown in figures():
        draw(*shown)
        new[path] = picture()
    for path, text in new.items():
        old = path.read_text(encoding="utf-8") if path.exists() else None
        if old is None or not same(old, text, path.suffix):
            stale.append(path)
            if not check:
                path.write_text(text, encoding="utf-8")
    for path in stale:
        print(f"{path.name} {'is not what the counts give: make results' if check else 'written'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
