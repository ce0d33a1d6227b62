"""The Python API: results as objects, training from Python, and how a stopped run ends."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bestofk
from bestofk import evaluation
from bestofk.api.own_data import data_options, objective_settings
from bestofk.config import EvaluationSection
from bestofk.runs import read_metrics
from bestofk.training.checks import few_problems
from bestofk.training.resolve import held_out

REWARDS = np.random.default_rng(0).integers(0, 2, size=(12, 8)).astype(float)


def test_a_name_that_is_not_promised_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'evalute'"):
        bestofk.evalute  # noqa: B018


def test_an_evaluation_is_the_curve_with_a_short_face() -> None:
    found = bestofk.evaluate(REWARDS, k=[1, 8])
    curve = evaluation.curve(evaluation.samples(REWARDS), "pass@k", k_max=8)
    at = found.at(8)
    assert (at.value, at.low) == (curve.estimate[7], curve.interval.low[7])
    assert float(at) == at.value
    lines = repr(found).splitlines()
    assert lines[0] == "samples: pass@k, 12 problems, n = 8"
    assert [line.split()[0] for line in lines[1:]] == ["pass@1", "pass@8"]
    assert found._repr_html_().count("<tr>") == 3
    with pytest.raises(ValueError, match=r"k ≤ 8|k = 1\.\.8"):
        found.at(9)


def _image(shown: str) -> Any:
    """The only picture in the HTML of a result, as an array of pixels."""
    from matplotlib.image import imread

    assert shown.count("<img") == 1
    data = shown.partition("base64,")[2].partition('"')[0]
    return imread(io.BytesIO(base64.b64decode(data)))


def test_a_notebook_shows_the_figure_that_plot_draws() -> None:
    from matplotlib.figure import Figure
    from matplotlib.image import imread

    from bestofk.evaluation.charts import in_style

    better = np.maximum(REWARDS, REWARDS[::-1])
    for result in (bestofk.evaluate(REWARDS), bestofk.compare(REWARDS, better)):
        assert result._repr_html_().count("<table>") == 1
        drawn = io.BytesIO()
        with in_style():
            figure = Figure(figsize=(5.0, 3.6), layout="constrained")
            result.plot(figure.subplots())
            figure.savefig(drawn, format="png", dpi=144)
        drawn.seek(0)
        np.testing.assert_array_equal(_image(result._repr_html_()), imread(drawn))


def test_a_figure_states_n_k_and_problems_and_a_name_can_be_anything() -> None:
    odd = "$x_1$ _hidden \u202e\x00"
    better = np.maximum(REWARDS, REWARDS[::-1])
    a, b = bestofk.read(REWARDS, name=odd), bestofk.read(better[:, :4], name="b")
    axes = bestofk.evaluate(b).plot(bestofk.evaluate(a).plot())
    small = axes.figure.get_supxlabel()
    assert small.splitlines() == [
        "n = 8, k = 1…8, 12 problems; 95% intervals over problems",
        "n = 4, k = 1…4, 12 problems; 95% intervals over problems",
    ]
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == [r"\$x_1\$ _hidden ��", "b"]
    apart = bestofk.compare(a, b, k=[1, 4]).plot()
    assert apart.figure.get_supxlabel().startswith("n = 4 and 8, k = 1…4, 12 problems; 95% band")
    axes.figure.canvas.draw()


def test_without_matplotlib_a_notebook_shows_the_table_alone() -> None:
    code = (
        "import sys\n"
        "sys.modules['matplotlib'] = None\n"
        "import bestofk\n"
        "shown = bestofk.evaluate([[0, 1, 1], [1, 0, 0]])._repr_html_()\n"
        "print(shown.count('<table>'), shown.count('<img'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1 0\n"


def test_html_escapes_names() -> None:
    named = bestofk.read(REWARDS, name="<script>")
    assert "<script>" not in bestofk.evaluate(named)._repr_html_() + named._repr_html_()


def test_graded_rewards_are_evaluated_by_max_at_k() -> None:
    assert bestofk.evaluate(REWARDS * 3 - 1).metric == "max@k"
    assert bestofk.evaluate(REWARDS * 3 - 1, threshold=2.0).metric == "pass@k"


def test_a_comparison_says_its_verdict() -> None:
    better = np.maximum(REWARDS, np.roll(REWARDS, 1, axis=1))
    a, b = bestofk.read(REWARDS, name="a"), bestofk.read(better, name="b")
    found = bestofk.compare(a, b)
    (same,) = evaluation.compare([a, b], "pass@k")
    assert found.verdict == same.verdict
    assert found.at(1).value == same.difference[0]
    assert repr(found).endswith(same.verdict)
    assert bestofk.compare(REWARDS, better).a == "samples (a)"


SHOWN = (1, 2, 4, 8, 16)


def test_the_interval_shown_is_the_one_the_verdict_uses() -> None:
    """At some k the difference is significant alone and not over all k: no interval may say so."""
    rng = np.random.default_rng(0)
    chance = rng.beta(1, 1, 60)[:, None]
    a, b = (rng.random((60, 16)) < chance).astype(float), rng.random((60, 16)) < chance + 0.05
    found = bestofk.compare(bestofk.read(a, name="a"), bestofk.read(b.astype(float), name="b"))
    alone = [bestofk.compare(a, b.astype(float), at=[k]) for k in SHOWN]
    assert any(one.at(k).low > 0 >= found.at(k).low for k, one in zip(SHOWN, alone))
    sure = found.p_value <= 0.05
    band = found.band
    assert ((band.low > 0) | (band.high < 0)).tolist() == sure.tolist()
    for k in SHOWN:
        assert (found.at(k).low, found.at(k).high) == (band.low[k - 1], band.high[k - 1])
        text = f"[{band.low[k - 1]:.3f}, {band.high[k - 1]:.3f}]"
        assert text in repr(found)
        assert f"{band.low[k - 1]:+.3f} – {band.high[k - 1]:+.3f}" in found._repr_html_()
    frame = found.to_pandas()
    assert frame.low.tolist() == band.low.tolist()
    drawn = found.plot().collections[0].get_paths()[0].vertices[:, 1]
    assert drawn.min() == pytest.approx(band.low.min(), abs=1e-5)


def test_frames_and_plots() -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    found = bestofk.evaluate(REWARDS)
    frame = found.to_pandas()
    assert list(frame.columns) == ["k", "estimate", "low", "high"]
    assert frame.estimate[7] == found.at(8).value
    axes = found.plot()
    assert axes.get_ylabel() == "pass@k"
    assert axes.lines[0].get_ydata()[-1] == pytest.approx(found.estimate[-1], abs=1e-5)
    assert "intervals over problems" in axes.figure.get_supxlabel()
    second = bestofk.evaluate(1 - REWARDS).plot(axes)  # beside the first, in another colour
    assert len({line.get_color() for line in second.lines}) == 2
    pair = bestofk.compare(REWARDS, 1 - REWARDS)
    assert list(pair.to_pandas().columns) == ["k", "difference", "low", "high", "p"]
    drawn = pair.plot()
    assert drawn.get_ylabel() == "difference in pass@k"
    crossing = 1 if pair.crossing else 0
    assert len(drawn.lines) == 2 + crossing
    chosen = bestofk.compare(REWARDS, 1 - REWARDS, at=[1, 4]).plot()
    assert chosen.lines[1].get_xdata().tolist() == [1, 4]
    assert len(bestofk.read(REWARDS).to_pandas()) == REWARDS.size


@pytest.mark.parametrize("rewards", [[1, 0], None, [["a"]], np.zeros((2, 2, 2))])
def test_rewards_that_are_not_one_row_for_each_problem_are_an_error(rewards: Any) -> None:
    with pytest.raises(ValueError, match="one row of numbers for each problem"):
        bestofk.read(rewards)


def test_answers_belong_to_the_rewards_of_their_row() -> None:
    with pytest.raises(ValueError, match="answers and rewards have rows of other lengths"):
        evaluation.samples([[1, 0], [1]], answers=[["a"], ["b", "c"]])


def test_what_a_frame_lacks_is_missing_as_in_a_file() -> None:
    pandas = pytest.importorskip("pandas")
    rows = [{"id": "a", "reward": Decimal(1), "answer": "x"}, {"id": "a", "reward": Decimal(0)}]
    framed, plain = bestofk.read(pandas.DataFrame(rows)), bestofk.read(iter(rows))
    for run in (framed, plain):
        assert run.rewards.tolist() == [1.0, 0.0]
        assert run.answers is not None
        assert (run.answers < 0).tolist() == [False, True]
    with pytest.raises(ValueError, match="'id' is null or empty"):
        bestofk.read(pandas.DataFrame([*rows, {"reward": 1}]))


def test_one_k_may_be_stated_alone() -> None:
    assert bestofk.compare(REWARDS, 1 - REWARDS, 4).shown == (4,)


def test_signal_in_a_line() -> None:
    silent = np.zeros((11, 16))
    lively = np.tile(np.arange(16) / 16.0, (21, 1))
    found = bestofk.signal(np.concatenate([silent, lively]), "max@8")
    assert str(found) == repr(found) == "21 of 32 groups carry signal; k ≤ 15"


def test_a_report_from_files(tmp_path: Path) -> None:
    for name in "ab":
        rows = [
            {
                "problem_id": f"p{p}",
                "sample_id": i,
                "reward": float((p + i) % 3 == 0),
                "completion": "x",
            }
            for p in range(6)
            for i in range(4)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    runs = [bestofk.read(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]
    made = bestofk.report(runs, tmp_path / "page.html")
    assert made.path.read_text().startswith("<!doctype html>")
    assert made.verdicts
    with pytest.raises(ValueError, match="made in memory"):
        bestofk.report(bestofk.read(REWARDS), tmp_path / "page.html")


@pytest.mark.parametrize(
    ("data", "reward", "message"),
    [
        (None, "m:f", "data is needed"),
        ([{"prompt": "?"}], None, "need a reward"),
        ([], "m:f", "no rows"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, data: Any, reward: Any, message: str) -> None:
    sources = {"train": data, "validation": None, "test": None}
    with pytest.raises(ValueError, match=message):
        data_options(sources, reward, prompt=None, folder=tmp_path)


@pytest.mark.parametrize("name", ["metrics.jsonl", "samples/mine.jsonl", "data/train.jsonl"])
def test_a_folder_that_holds_a_run_or_files_where_a_run_writes_is_left_alone(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(FileExistsError, match=r"--run\.dir|name another dir"):
        bestofk.train("tiny-countdown", [{"prompt": "?"}] * 3, "exact", "max@2", dir=tmp_path)
    assert (tmp_path / name).read_text() == "mine"


def test_a_run_that_does_not_begin_removes_its_own_rows_alone(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.csv").write_text("mine")
    with pytest.raises(ValueError, match="none of the fields is known to hold"):
        bestofk.train("tiny-countdown", [{"prompt": "?"}], "exact", "max@2", dir=tmp_path)
    assert [path.name for path in tmp_path.rglob("*.*")] == ["mine.csv"]


def test_rows_may_come_from_a_generator(tmp_path: Path) -> None:
    sources = {"train": ({"prompt": f"{i}?"} for i in range(3)), "validation": None, "test": None}
    _, count, files = data_options(sources, "m:f", prompt=None, folder=tmp_path)
    assert count == 3
    assert [text.count("\n") for text in files.values()] == [3]


@pytest.mark.parametrize(
    ("rows", "validation", "test"),
    [(100, 0, 0), (200, 0.32, 0), (1000, 0.064, 0.064), (5000, 0.05, 0.05)],
)
def test_enough_rows_are_held_out_to_show_something(
    rows: int, validation: float, test: float
) -> None:
    decided = held_out(rows, EvaluationSection())
    shares = [decided[f"task.options.{split}_share"][0] for split in ("validation", "test")]
    assert shares == pytest.approx((validation, test))
    assert ("evaluation.split" in decided) == (rows == 100)


def test_few_problems_are_noted_with_the_number_that_would_do() -> None:
    (note,) = few_problems(9, 8)
    found = re.search(r"on 9 problems can hardly show .* about (\d+) problems", note)
    assert found is not None
    assert not few_problems(int(found[1]), 8)
    assert few_problems(int(found[1]) - 1, 8)
    assert not few_problems(64, 8)


@pytest.mark.parametrize(
    ("faulty", "said"),
    [
        ({"objective": "mx@2"}, "unknown objective"),
        ({"objective": 8}, "a string such as 'max@8'"),
        ({"model": "no-such-model"}, "no-such-model"),
        ({"model": [{"prompt": "?"}], "data": "tiny-countdown"}, "data come after it"),
        ({"data": [{"colour": "red"}] * 9}, "colour"),
        ({"data": 42}, "data is rows .*; got 42"),
        ({"settings": ["optimizer.schedule"]}, "settings is a dict"),
        ({"dir": ""}, "leave it out for one in runs/"),
        ({"reward": lambda completion, missing: 1.0}, "missing"),
    ],
)
def test_no_folder_is_made_before_objective_data_and_model_are_known_to_be_good(
    tmp_path: Path, faulty: dict[str, Any], said: str
) -> None:
    rows = [{"prompt": f"{i} 2 3 = {i + 5}:"} for i in range(8)]
    whole: dict[str, Any] = {
        "model": "tiny-countdown", "data": rows, "reward": lambda completion: 0.5,
        "objective": "max@2", "samples_per_prompt": 4, "max_new_tokens": 8, "steps": 1,
    }  # fmt: skip
    with pytest.raises((ValueError, OSError), match=said):
        bestofk.train(**{**whole, "dir": tmp_path / "run", **faulty})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [{}, {"threshold": 0.5}, {"weights": [1, 3]}, {"truncate": 1.0, "trust_region": (0.2, 0.3)}],
)
def test_an_objective_is_recorded_as_its_string_and_options(options: dict[str, Any]) -> None:
    made = bestofk.objective("max@1+4", **options)
    stated = objective_settings(made)
    assert bestofk.objective(stated["objective"], **stated["objective_options"]) == made
    other = replace(made, text="max@2")
    with pytest.raises(ValueError, match=r"make it with bestofk.objective"):
        objective_settings(other)


SCRIPT = """
import itertools, os, sys, bestofk
moment, calls = 40, itertools.count()
def reward(prompt, completion):
    if len(sys.argv) > 1 and next(calls) == moment:
        os.kill(os.getpid(), int(sys.argv[1]))
    return completion.count("1") / 8 - 1.0
if len(sys.argv) > 1:
    rows = [{"prompt": f"{i} 2 3 = {i + 5}:"} for i in range(4)]
    run = bestofk.train("tiny-countdown", rows, reward, "max@2", steps=6, samples_per_prompt=4,
                        max_new_tokens=8, evaluate_every=0, dir="run",
                        settings={"sampling.prompts_per_step": 4})
else:
    run = bestofk.train("tiny-countdown", reward=reward, resume="moved")
print("returned", run)
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 1)])
def test_a_stopped_run_does_not_return_to_the_script(
    tmp_path: Path, warm: Path, number: int, status: int
) -> None:
    """Asked to leave in the middle, by its own reward function."""
    (tmp_path / "script.py").write_text(SCRIPT)

    def script(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(warm / "python"), "script.py", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900)

    stopped = script(str(number))
    said = stopped.stdout + stopped.stderr
    assert "returned" not in said, said
    assert stopped.returncode == status, said
    assert "resume='run'" in said
    assert 0 < len(read_metrics(tmp_path / "run")) < 6
    if number == signal.SIGTERM:
        (tmp_path / "run").rename(tmp_path / "moved")  # with its rows
        done = script()
        assert "returned moved: max@2, 6 steps" in done.stdout, done.stderr
        assert (tmp_path / "moved" / "final" / "config.json").is_file()


def test_an_objective_with_options_that_it_needs_is_recorded_with_them():
    for made, options in (
        (bestofk.objective("retry@8", price=0.02), {"price": 0.02}),
        (bestofk.objective("lstat@2", coefficients=[0.25, 0.75]), {"coefficients": [0.25, 0.75]}),
        (bestofk.objective("subsets@2", value=np.ptp), {"value": f"{np.ptp.__module__}:ptp"}),
    ):
        found = objective_settings(made)
        assert found == {"objective": made.text, "objective_options": options}
    with pytest.raises(TypeError, match=r"objective_options.value = 'file.py:name'"):
        objective_settings(bestofk.objective("subsets@2", value=lambda r, s, a: 0.0))


@pytest.mark.parametrize(("policy", "spins"), [(None, "2000"), ("ACTIVE", None)])
def test_waiting_threads_sleep_soon_unless_the_user_says_how_they_wait(
    policy: str | None, spins: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, policy or "")
        if policy is None or name == "GOMP_SPINCOUNT":
            monkeypatch.delenv(name)
    with pytest.raises(ValueError, match="data come after"):
        bestofk.train(3)  # type: ignore[arg-type]
    assert os.environ.get("GOMP_SPINCOUNT") == spins
