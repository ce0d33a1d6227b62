"""select@k and retry@k as metrics, and two procedures compared on one file: against enumeration."""

import json
import re
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest

from bestofk.cli import main
from bestofk.evaluation import Metric, compare, curve, plan, population, samples
from bestofk.evaluation.verdict_words import effects

RNG = np.random.default_rng(3)
REWARDS: list[Any] = [RNG.choice([0.0, 0.3, 1.0], n) for n in (5, 6, 5)]
SCORES = [RNG.choice([-np.inf, 1.0, 2.0], len(row)) for row in REWARDS]
TOKENS = [RNG.integers(1, 9, len(row)).astype(float) for row in REWARDS]
RUN = samples(REWARDS, scores=SCORES, tokens=TOKENS)


def over_subsets(worth, rows, k):
    """Mean over problems of the mean over all k-subsets."""
    return np.mean(
        [np.mean([worth(p, each) for each in combinations(range(n), k)]) for p, n in rows]
    )


@pytest.mark.parametrize("threshold", [None, 0.3])
def test_select_is_the_reward_of_the_best_scored_over_all_subsets(threshold):
    found = curve(RUN, "select@k", threshold=threshold)

    def worth(p, subset):
        best = max(SCORES[p][j] for j in subset)
        used = np.array([REWARDS[p][j] for j in subset if SCORES[p][j] == best])
        return used.mean() if threshold is None else (used >= threshold).mean()

    for k in range(1, 6):
        expected = over_subsets(worth, list(enumerate(map(len, REWARDS))), k)
        assert found.at(k).value == pytest.approx(expected, abs=1e-14)
    assert (found.fixed.low <= found.estimate).all()
    assert (found.fixed.high >= found.estimate).all()


def test_retry_is_reward_draws_and_tokens_over_all_orders():
    found = curve(RUN, "retry@k", threshold=1.0, price=0.05)
    notes = " ".join(found.notes)
    for k in (1, 2, 4):
        total = np.zeros(3)
        for rewards, tokens in zip(REWARDS, TOKENS):
            orders = []
            for order in permutations(range(len(rewards)), k):
                draws = next((at for at, j in enumerate(order, 1) if rewards[j] >= 1), k)
                drawn = list(order[:draws])
                orders.append([rewards[drawn].max(), draws, tokens[drawn].sum()])
            total = total + np.mean(orders, axis=0) / len(REWARDS)
        reward, drawn_on_average, spent = total
        expected = reward - 0.05 * drawn_on_average
        assert found.at(k).value == pytest.approx(expected, abs=1e-14)
        assert f"{drawn_on_average:.4g} at k = {k} (" in notes
        assert f"{spent:.4g} at k = {k} (" in notes
    assert "a draw costs 0.05" in notes


def test_a_price_of_tokens_is_their_number_times_the_price():
    price, run = 0.01, RUN
    found = curve(run, "retry@k:tokens", threshold=1.0, price=price)
    free = curve(run, "retry@k", threshold=1.0).at(4).value
    (spent,) = re.findall(r"tokens per problem.* ([\d.]+) at k = 4", " ".join(found.notes))
    assert found.at(4).value == pytest.approx(free - price * float(spent), abs=1e-4)
    assert "a token costs 0.01" in found.notes
    assert found.rows()[0][0] == "retry@1:tokens"
    (same,) = compare([run, run], "retry@k:tokens", threshold=1.0, price=price)
    assert "at retry@1:tokens (not significant), " in effects(same)
    assert (found.interval.low < found.estimate).all()
    (both,) = compare([run, run], ["retry@k:tokens", "retry@k"], threshold=1.0, price=price, at=[4])
    draws = curve(run, "retry@k", threshold=1.0, price=price).at(4).value
    assert both.difference == pytest.approx(draws - found.at(4).value)
    with pytest.raises(ValueError, match=r"retry@k:tokens needs the tokens.*--map n_tokens=COLUMN"):
        curve(samples(REWARDS), "retry@k:tokens", threshold=1.0, price=price)
    less = samples(REWARDS, tokens=[-row for row in TOKENS])
    with pytest.raises(ValueError, match="and not all have some"):
        curve(less, "retry@k:tokens", threshold=1.0, price=price)


@pytest.mark.parametrize("m", [1, 2, 4])
def test_at_least_m_of_k_is_its_definition_over_all_subsets(m):
    metric: Any = f"atleast{m}@k"
    found = curve(RUN, metric, threshold=0.3)

    def worth(p, subset):
        return float((REWARDS[p][list(subset)] >= 0.3).sum() >= m)

    for k in range(1, 6):
        expected = over_subsets(worth, list(enumerate(map(len, REWARDS))), k)
        assert found.at(k).value == pytest.approx(expected, abs=1e-14)
    assert (found.interval.low <= found.estimate).all()
    assert found.methods().startswith(f"We report {metric}, the chance that {m} or more of k")
    if m == 1:
        passed = curve(RUN, "pass@k", threshold=0.3)
        np.testing.assert_array_equal(found.interval.low, passed.interval.low)


def test_at_least_two_of_k_is_compared_planned_and_typed_with_its_k(tmp_path, capsys):
    file = tmp_path / "a.jsonl"
    lines = [
        {"problem_id": p, "reward": float(reward >= 1)}
        for p, row in enumerate(REWARDS)
        for reward in row
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    assert main(["eval", str(file), "--metric", "atleast2@4", "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)[0]["curves"]
    assert main(["eval", str(file), "--metric", "atleast2@k", "--k", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["curves"] == [shown]
    assert (shown["metric"], shown["k"][-1]) == ("atleast2@k", 4)
    assert main(["compare", str(file), "--metric", "atleast2@4,pass@4", "--json"]) == 0
    assert "pass@k against atleast2@k" in capsys.readouterr().out
    metric: Any = "atleast2@k"
    planned: Any = plan(4, metric, pilots=[RUN], threshold=0.3, width=0.3)
    assert planned.rows
    with pytest.raises(ValueError, match="unknown metric 'atleast0@k'; did you mean"):
        curve(RUN, "atleast0@k")  # type: ignore[arg-type]


RULES = ["", "ties-wrong", "ties-count", "weighted", "weighted:ties-wrong", "weighted:ties-count"]


@pytest.mark.parametrize("rule", RULES)
def test_a_vote_with_rules_is_its_definition_exact_and_by_random_orders(rule, monkeypatch):
    answers: list[Any] = [["a", "b", "a", "c", "b"], ["a", None, "b", "c", "c", "b"]]
    votes = [[1.0, 3.0, 2.0, 0.0, 1.0], [2.0, 9.0, 1.0, 1.0, 0.0, 1.0]]
    rewards = [[float(each == "b") for each in row] for row in answers]
    run = samples(rewards, answers=answers, scores=votes)

    def worth(p, subset):
        tally: dict[str, float] = {}
        for j in subset:
            own, answer = votes[p][j] if "weighted" in rule else 1.0, answers[p][j]
            if answer is not None and own:
                tally[answer] = tally.get(answer, 0.0) + own
        lead = [each for each in tally if tally[each] == max(tally.values())]
        if "count" in rule or "b" not in lead:
            return float("b" in lead)
        return 1.0 if len(lead) == 1 else 0.0 if "wrong" in rule else 1 / len(lead)

    metric: Any = f"maj@k:{rule}".strip(":")
    exact = curve(run, metric).estimate
    expected = [over_subsets(worth, [(0, 5), (1, 6)], k) for k in range(1, 6)]
    np.testing.assert_allclose(exact, expected, atol=1e-12)
    monkeypatch.setattr("bestofk.evaluation.voting.EXACT_WORK", 0.0)
    np.testing.assert_allclose(curve(run, metric).estimate, expected, atol=0.06)


def test_a_soft_choice_is_one_of_k_in_proportion_to_the_exponential_of_its_score():
    found = curve(RUN, "select@k:soft")

    def worth(p, subset):
        chances = np.exp(SCORES[p][list(subset)])
        chances = chances if chances.any() else np.ones(len(chances))
        return float(chances @ REWARDS[p][list(subset)] / chances.sum())

    for k in range(1, 6):
        expected = over_subsets(worth, list(enumerate(map(len, REWARDS))), k)
        assert found.at(k).value == pytest.approx(expected, abs=1e-12)
    assert found.rows()[0][0] == "select@1:soft"
    with pytest.raises(ValueError, match="needs the scores that choose"):
        curve(samples(REWARDS), "select@k:soft")
    with pytest.raises(ValueError, match="run: a weighted vote takes scores that are whole"):
        curve(samples([[0, 1]], answers=[["a", "b"]], scores=[[0.5, 1.0]], name="run"),
              "maj@k:weighted")  # fmt: skip


def test_a_price_is_for_retry_alone_and_is_never_negative(tmp_path, capsys):
    run = samples([[0, 1, 1, 0], [0, 0, 1, 0], [1, 1, 1, 0]] * 3, name="a")
    for metric in ("pass@k", "max@k", "pass^k", "mean"):
        with pytest.raises(
            ValueError, match=f"a price of draws is for retry@k.*{re.escape(metric)}"
        ):
            curve(run, metric, price=0.1)
        with pytest.raises(ValueError, match="a price of draws is for retry@k"):
            compare([run, run], metric, price=0.1)
    for price in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="a number of at least 0, got"):
            curve(run, "retry@k", price=price)
    for metric, own in (("max@k", 0.0), ("retry@k", 0.1)):
        file = tmp_path / "a.jsonl"
        rows = ({"problem_id": p, "reward": r} for p, row in enumerate(REWARDS) for r in row)
        file.write_text("\n".join(map(json.dumps, rows)))
        words = ["--metric", "max@k,retry@k", "--price", "0.1", "--threshold", "1", "--json"]
        assert main(["eval", str(file), *words]) == 0
        shown = {each["metric"]: each for each in json.loads(capsys.readouterr().out)[0]["curves"]}
        alone = curve(RUN, metric, threshold=1.0, price=own)  # type: ignore[arg-type]
        np.testing.assert_allclose(shown[metric]["estimate"], alone.estimate)
    (both,) = compare([run, run], ["max@k", "retry@k"], at=[3], price=0.1)
    retry = curve(run, "retry@k", price=0.1).at(3).value
    assert both.difference == pytest.approx(retry - curve(run, "max@k").at(3).value)


def test_two_procedures_on_one_file_are_paired_by_problem(tmp_path, capsys):
    answers, scores = RNG.integers(0, 3, (30, 6)), RNG.random((30, 6))
    rewards = (answers == 0).astype(float)
    path = tmp_path / "a.jsonl"
    path.write_text(
        "\n".join(
            json.dumps({"problem_id": str(p), "reward": rewards[p, j], "answer": str(answers[p, j]),
                        "judge": scores[p, j]})
            for p in range(30) for j in range(6)
        )
    )  # fmt: skip
    asked = ["--metric", "maj@k,select@k", "--scores", "judge", "--json"]
    assert main(["compare", str(path), *asked]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    run = samples(rewards, scores=scores, answers=answers.tolist())
    vote, judge = curve(run, "maj@k").estimate, curve(run, "select@k").estimate
    np.testing.assert_allclose(shown["difference"], judge - vote, atol=1e-9)
    assert shown["metric"] == "select@k against maj@k"
    assert main(["compare", str(path), *asked[:-1]]) == 0
    assert capsys.readouterr().out.count(str(path)) == 1  # one file is named once
    assert main(["eval", str(path), "--metric", "select@k", "--scores", "judge", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    np.testing.assert_allclose(one["curves"][0]["estimate"], judge, atol=1e-9)
    assert main(["eval", str(path), *asked]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert [each["metric"] for each in one["curves"]] == ["maj@k", "select@k"]
    np.testing.assert_allclose(one["curves"][1]["estimate"], judge, atol=1e-9)


def test_a_report_shows_every_metric_and_scores_in_lists_are_no_scores(tmp_path, capsys):
    path, page = tmp_path / "a.jsonl", tmp_path / "a.html"
    path.write_text(
        "".join(
            json.dumps({"problem_id": p, "reward": float(j == p), "judge": j, "bad": [j]}) + "\n"
            for p in range(8) for j in range(4)
        )
    )  # fmt: skip
    metrics = ["pass@k", "retry@k", "atleast2@k", "select@k"]
    words = ["report", str(path), "--out", str(page), "--metrics", *metrics, "--quiet"]
    assert main([*words, "--price", "0.1", "--scores", "judge"]) == 0
    assert all(f'"key":"{each}"' in page.read_text().replace(" ", "") for each in metrics)
    assert main([*words, "--scores", "bad"]) == 2
    assert "no column with numbers was read for them" in capsys.readouterr().err


def test_one_sample_of_a_vote_and_of_a_choice_differ_by_nothing_not_by_rounding():
    rewards = RNG.integers(0, 2, (30, 7)) * 1.0
    run = samples(rewards, scores=RNG.random((30, 7)), answers=rewards.tolist())
    (both,) = compare([run, run], ["maj@k", "select@k"], resamples=400)
    assert both.difference[0] == 0.0
    assert both.rows()[0][1].text("+").startswith("+0.000")


def test_bad_scores_and_metrics_are_one_sentence():
    with pytest.raises(ValueError, match="name it with --scores COLUMN"):
        curve(samples(REWARDS), "select@k")
    gap = [[np.nan, *row[1:]] for row in SCORES]
    with pytest.raises(ValueError, match="select@k needs a score for every scored sample"):
        curve(samples(REWARDS, scores=gap), "select@k")
    with pytest.raises(ValueError, match="needs a definition of pass"):
        curve(RUN, "retry@k")
    with pytest.raises(ValueError, match="3 metrics for 2 runs"):
        compare([RUN, RUN], ["max@k", "mean", "max@k"])


def test_a_plan_for_any_metric_draws_a_pilot_again():
    rng = np.random.default_rng(5)
    chance = rng.beta(0.6, 0.8, (200, 1))
    right = (rng.random((200, 32)) < chance) * 1.0
    pilot = samples(
        right, scores=right + rng.normal(size=right.shape), answers=right.astype(int).tolist(),
        tokens=np.full(right.shape, 10.0), name="pilot",
    )  # fmt: skip
    by_pass = plan(4, width=0.1, people=population([pilot], k=4), n=[16]).best.problems
    drawn = plan(4, "max@k", width=0.1, pilots=[pilot], n=[16])
    assert drawn.best.problems == pytest.approx(by_pass, rel=0.15)
    assert drawn.population == "problems and samples of pilot drawn again (200 problems)"
    prices: dict[Metric, float] = {"select@k": 0.0, "maj@k:ties-wrong": 0.0, "retry@k:tokens": 0.01}
    for metric, price in prices.items():
        made = plan(4, metric, width=0.1, pilots=[pilot], n=[16], price=price, threshold=1.0)
        assert made.metric == metric
        assert 50 < made.best.problems < 1000
        assert made.best.value <= 0.1
    one, two = (
        plan(4, "select@k", power=0.8, effect=0.05, pilots=pilots, n=[16]).best.problems
        for pilots in ([pilot], [pilot, pilot_of_the_same(pilot, rng)])
    )
    assert 50 < two < one  # the same problems are as hard for both: less to tell apart
    with pytest.raises(ValueError, match=r"a plan for maj@k takes a pilot \(--pilot FILE\)"):
        plan(4, "maj@k", width=0.1)
    with pytest.raises(ValueError, match="no problem has 40 scored samples to plan max@k from"):
        plan(40, "max@k", width=0.1, pilots=[pilot])


def pilot_of_the_same(pilot, rng):
    """Another run with the pass rates of the pilot."""
    rates = pilot.rewards.reshape(200, 32).mean(axis=1, keepdims=True)
    right = (rng.random((200, 32)) < rates) * 1.0
    scores = right + rng.normal(size=right.shape)
    return samples(right, scores=scores, problems=pilot.problems, name="other")
