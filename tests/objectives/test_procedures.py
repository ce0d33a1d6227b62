"""Procedures beyond the maximum: against their definition over all subsets, and by enumeration."""

import math
from collections import Counter
from functools import partial
from itertools import combinations, permutations, product
from typing import Any

import jax
import numpy as np
import pytest
import torch

from bestofk import advantages, objective
from bestofk.procedures import PROCEDURES
from bestofk.procedures.majority import numbered
from bestofk.procedures.subsets import design

RNG = np.random.default_rng(7)
NAN = math.nan


@pytest.fixture
def x64():
    before = jax.config.read("jax_enable_x64")
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def chosen(rewards, scores, subset):
    """The mean reward of the best-scored of a subset."""
    best = max(scores[j] for j in subset)
    return np.mean([rewards[j] for j in subset if scores[j] == best])


def by_definition(worth, ratio, k, baseline):
    """k ρ_i (q_i - b_i), from what every subset is worth."""
    n, result = len(ratio), []

    def weighted(sets, value):
        return sum(math.prod(ratio[j] for j in each) * value(each) for each in sets)

    for i in range(n):
        others = [j for j in range(n) if j != i]
        less, same = list(combinations(others, k - 1)), list(combinations(others, k))
        b = 0.0
        if baseline == "loo-1" and k > 1:
            b = weighted(less, worth)
        elif baseline != "none":
            own = weighted(same, worth) / weighted(same, lambda _: 1.0)
            b = weighted(less, lambda _: 1.0) * own
        q = weighted(less, lambda each, i=i: worth((*each, i)))
        result.append(k * ratio[i] * (q - b) / math.comb(n - 1, k - 1))
    return np.array(result)


def sizes(n, baseline):
    return range(1, n + (baseline == "none" or (baseline == "loo-1" and n > 1)))


@pytest.mark.parametrize("n", [2, 4, 6])
@pytest.mark.parametrize("baseline", ["canonical", "loo-1", "none"])
@pytest.mark.parametrize("levels", [(0.0, 1.0), (-np.inf, 0.0, 1.0, 3.0), tuple(np.arange(50.0))])
def test_select_is_its_definition_over_subsets_with_ties_on_and_off_policy(n, baseline, levels):
    for k in sizes(n, baseline):
        rewards, scores = RNG.choice([0.0, 0.3, 1.0, 2.0], n), RNG.choice(levels, n)
        name = f"select@{k}:{baseline}"
        for logs in (np.zeros(n), RNG.normal(size=n) * 0.6):

            def worth(subset, rewards=rewards, scores=scores):
                return chosen(rewards, scores, subset)

            expected = by_definition(worth, np.exp(logs), k, baseline)
            got = advantages(rewards, name, scores=scores, log_ratio=logs)
            np.testing.assert_allclose(got, expected, atol=1e-12)
            if not logs.any():
                on_policy = advantages(rewards, name, scores=scores)
                np.testing.assert_allclose(on_policy, expected, atol=1e-12)


ANSWERS = {"rewards": np.array([0.0, 3.0, 0.4, 0.0]), "scores": np.array([2.0, 1.0, 2.0, 0.0])}
NOW, OLD = np.array([0.3, -0.4, 0.9, 0.1]), np.array([0.0, 0.1, 0.5, 0.2])


TO: dict[str, Any] = {"numpy": np.asarray, "torch": torch.tensor, "jax": jax.numpy.asarray}


def softmax(logits):
    return np.exp(logits) / np.exp(logits).sum()


def expected_update(weights, n, old, new):
    """E[(1/n) Σ A_i ∇log π_new(y_i)] over every outcome of n draws from the old policy."""
    draws = np.array(list(product(range(4), repeat=n)))
    slopes = np.eye(4) - softmax(new)
    chance = softmax(old)[draws].prod(axis=1)
    return np.einsum("o,on,ond->d", chance, weights(draws), slopes[draws]) / n


def gradient_of(worth, k, new):
    """∇ E[worth of k draws], by the score function over every outcome."""
    draws = np.array(list(product(range(4), repeat=k)))
    values = np.array([worth(draw) for draw in draws])
    slopes = (np.eye(4) - softmax(new))[draws].sum(axis=1)
    return np.einsum("o,o,od->d", softmax(new)[draws].prod(axis=1), values, slopes)


@pytest.mark.parametrize("old", [NOW, OLD], ids=["on policy", "off policy"])
@pytest.mark.parametrize(
    ("text", "parts"),
    [("select@2", {2: 1}), ("select@3:loo-1", {3: 1}), ("select@3:none", {3: 1}),
     ("select@1+3 1:2", {1: 1, 3: 2})],
)  # fmt: skip
def test_select_is_unbiased_by_enumeration(text, parts, old):
    n, (rewards, scores) = 4, ANSWERS.values()
    ratio = np.log(softmax(NOW) / softmax(old))

    def weights(draws):
        off = None if old is NOW else ratio[draws]
        return advantages(rewards[draws], text, scores=scores[draws], log_ratio=off)

    def worth(draw):
        return chosen(rewards[draw], scores[draw], range(len(draw)))

    expected = sum(share * gradient_of(worth, k, NOW) for k, share in parts.items())
    np.testing.assert_allclose(expected_update(weights, n, old, NOW), expected, atol=1e-13)


def vote(rewards, answers, votes, rule, subset):
    """What the rewards of the answer with most votes are worth; 0 where nobody votes."""
    counts = Counter[Any]()
    for j in subset:
        if answers[j] is not None and votes[j]:
            counts[answers[j]] += votes[j]
    worth = [
        np.mean([rewards[j] for j in subset if answers[j] == each and votes[j]])
        for each in counts
        if counts[each] == max(counts.values())
    ]
    if not worth or ("wrong" in rule and len(worth) > 1):
        return 0.0
    return max(worth) if "count" in rule else np.mean(worth)


RULES = ["", "ties-wrong", "ties-count", "weighted", "weighted:ties-wrong", "weighted:ties-count"]


def group_of_votes(n, rule):
    """Rewards beyond [0, 1], negative and tied; of one answer equal where the rule needs that."""
    answers = RNG.choice(np.array(["a", "b", "c", None]), n, p=[0.4, 0.2, 0.2, 0.2])
    rewards = np.array([{"a": 3.0, "b": 3.0, "c": -0.3}.get(each, 0.5) for each in answers])
    if "count" not in rule:
        rewards = RNG.choice([rewards, RNG.normal(size=n)])
    scores = RNG.integers(0, 5, n) * 1.0 if "weighted" in rule else np.ones(n)
    inputs: dict[str, Any] = {"answers": answers}
    if "weighted" in rule:
        inputs["scores"] = scores
    return rewards, inputs, partial(vote, rewards, answers, scores, rule)


@pytest.mark.parametrize("n", [2, 4, 7])
@pytest.mark.parametrize("baseline", ["canonical", "loo-1", "none"])
@pytest.mark.parametrize("rule", RULES)
def test_a_vote_is_its_definition_over_subsets_on_and_off_policy(n, baseline, rule, x64):
    for k in sizes(n, baseline):
        rewards, inputs, worth = group_of_votes(n, rule)
        name = f"maj@{k}:{baseline}:{rule}".strip(":")
        for logs in (None, RNG.normal(size=n) * 0.5):
            ratio = np.ones(n) if logs is None else np.exp(logs)
            expected = by_definition(worth, ratio, k, baseline)
            for to in (np.asarray, torch.tensor, jax.numpy.asarray)[: 3 if k == 2 else 1]:
                here: dict[str, Any] = {name: to(each) if name == "scores" else each
                        for name, each in inputs.items()}  # fmt: skip
                off = None if logs is None else to(logs)
                got = advantages(to(rewards), name, log_ratio=off, **here)
                assert type(got) is type(to(rewards))
                np.testing.assert_allclose(np.asarray(got), expected, atol=1e-12)
    curve = PROCEDURES[f"maj@k:{rule}".strip(":")].curve
    answers = {"answers": numbered(inputs["answers"])[None]}
    scores = {name: each[None] for name, each in inputs.items() if name == "scores"}
    found = curve(rewards[None], n, **answers, **scores)[0]
    means = [np.mean([worth(each) for each in combinations(range(n), k)]) for k in range(1, n + 1)]
    np.testing.assert_allclose(found, means, atol=1e-12)


@pytest.mark.parametrize("old", [NOW, OLD], ids=["on policy", "off policy"])
@pytest.mark.parametrize("rule", RULES)
def test_a_vote_is_unbiased_by_enumeration(rule, old):
    rewards, answers, scores = (
        ANSWERS["rewards"],
        np.array(["a", "b", "c", "a"]),
        np.array([2, 1, 3, 1]),
    )
    inputs = {"scores": scores} if "weighted" in rule else {}
    ratio = np.log(softmax(NOW) / softmax(old))

    def weights(draws):
        off = {} if old is NOW else {"log_ratio": ratio[draws]}
        here: dict[str, Any] = {name: each[draws] * 1.0 for name, each in inputs.items()}
        return advantages(
            rewards[draws], f"maj@3:{rule}".strip(":"), answers=answers[draws], **here, **off
        )

    def worth(draw):
        votes = scores[draw] if inputs else np.ones(3)
        return vote(rewards[draw], answers[draw], votes, rule, range(3))

    expected = gradient_of(worth, 3, NOW)
    np.testing.assert_allclose(expected_update(weights, 4, old, NOW), expected, atol=1e-13)


def test_a_vote_of_one_or_two_is_the_mean_and_a_vote_that_nobody_can_turn_has_no_signal():
    rewards, answers = np.array([1.0, 0.0, 0.0, 1.0, 0.4]), [1, 2, 2, 1, 3]
    for k in (1, 2):
        got = advantages(rewards, f"maj@{k}", answers=answers)
        np.testing.assert_allclose(got, advantages(rewards, "mean"), atol=1e-15)
    right = np.array([1.0] * 6 + [0.0])
    assert not advantages(right, "maj@3", answers=[7] * 6 + [8]).any()
    assert not advantages(np.ones(6), "maj@3", answers=[1, 1, 2, 2, 3, 4]).any()
    for given, message in (
        ({}, "objective maj@3 needs answers=, one per sample"),
        ({"answers": [1, 2]}, "answers must have the shape of rewards"),
        ({"answers": [1] * 7, "check": False}, "which cannot be traced"),
    ):
        with pytest.raises(ValueError, match=message):
            advantages(right, "maj@3", **given)
    tied = [1, 1, 1, 2, 2, 2, 3]  # where a tie is wrong, ties are a signal
    assert advantages(np.ones(7), "maj@2:ties-wrong", answers=tied).any()
    assert not advantages(right, "maj@3:ties-wrong", answers=[7] * 6 + [8]).any()
    assert objective("maj@3:loo-1:ties-wrong:weighted").needs == {"answers", "scores"}
    for score in (0.5, -1.0, 1001.0, np.inf):
        with pytest.raises(ValueError, match="takes scores that are whole numbers from 0 to 1000"):
            advantages(right, "maj@3:weighted", answers=tied, scores=[1.0] * 6 + [score])
    with pytest.raises(ValueError, match="has no variant 'ties-lost'; did you mean 'ties-count'"):
        objective("maj@3:ties-lost")
    with pytest.raises(ValueError, match="with 7 samples use maj@7:weighted:loo-1 or"):
        advantages(right, "maj@7:weighted", answers=tied, scores=right)


@pytest.mark.parametrize("levels", [(0.0, 1.0), (0.0, 0.4, 1.0, 1.3)])
def test_retrying_is_its_definition_over_the_orders_of_all_subsets(levels):
    price, rewards = 0.07, RNG.choice(levels, 6)

    def worth(subset):
        results = []
        for order in permutations(rewards[list(subset)]):
            draws = next((at for at, r in enumerate(order, 1) if r >= 1), len(order))
            used = order[draws - 1] if order[draws - 1] >= 1 else max(order)
            results.append(used - price * draws)
        return np.mean(results)

    for k in range(1, 6):
        got = advantages(rewards, f"retry@{k}", price=price)
        np.testing.assert_allclose(got, by_definition(worth, np.ones(6), k, ""), atol=1e-12)
        value = PROCEDURES["retry@k"].curve(rewards[None], 6, price=price)[0, k - 1]
        subsets = combinations(range(6), k)
        assert value == pytest.approx(np.mean([worth(each) for each in subsets]), abs=1e-13)


def test_retrying_for_zero_one_rewards_is_a_mixture_on_and_off_policy():
    rewards, logs = RNG.integers(0, 2, (4, 9)) * 1.0, RNG.normal(size=(4, 9)) * 0.3
    for off, baseline in product((None, logs), ("", ":loo-1", ":none")):
        mixture = f"pass@1+2+3+4{baseline}"
        expected = advantages(rewards, mixture, weights=[0.1, 0.1, 0.1, 1.0], log_ratio=off)
        got = advantages(rewards, f"retry@4{baseline}", price=0.1, log_ratio=off)
        np.testing.assert_allclose(got, expected, atol=1e-13)
    with pytest.raises(ValueError, match="objective retry@4 needs price="):
        objective("retry@4")
    with pytest.raises(ValueError, match="price is what one draw costs"):
        objective("retry@4", price=-1.0)


@pytest.mark.parametrize(("text", "least"), [("pass^3", 3), ("all@3", 3), ("atleast2@4", 2)])
def test_counts_of_passes_are_their_definition_and_silent_where_nothing_can_change(text, least):
    k = int(text[-1])

    def worth(subset):
        return float(rewards[list(subset)].sum() >= least)

    for passes in range(8):
        rewards = np.arange(7) < passes
        got = advantages(rewards * 1.0, text)
        np.testing.assert_allclose(got, by_definition(worth, np.ones(7), k, ""), atol=1e-13)
        values = {worth(each) for each in combinations(range(7), k)}
        assert got.any() == (len(values) > 1)
    with pytest.raises(ValueError, match="takes rewards that are 0, 1 or NaN"):
        advantages([0.3] * 7, text)


def second_best(rewards, scores, answers):
    return float(np.sort(rewards)[-2]) + 0.1 * (scores is not None and scores.max())


@pytest.mark.parametrize("old", [NOW, OLD], ids=["on policy", "off policy"])
@pytest.mark.parametrize("sets", [4, 512])
@pytest.mark.parametrize("control", [None, "select", "maj"])
def test_a_function_of_subsets_is_unbiased_by_enumeration_for_a_design_that_is_not_complete(
    old, sets, control
):
    rewards, scores = ANSWERS.values()
    ratio = np.log(softmax(NOW) / softmax(old))
    made = objective("subsets@2", value=second_best, sets=sets, control=control)
    assert len(design(4, 2, sets)) == min(sets, 6)

    def weights(draws):
        off = {} if old is NOW else {"log_ratio": ratio[draws]}
        answers = rewards[draws] > 0  # of several rewards: each counts
        return made(rewards[draws], scores=scores[draws], answers=answers, **off)

    def worth(draw):
        return second_best(rewards[draw], scores[draw], None)

    expected = gradient_of(worth, 2, NOW)
    np.testing.assert_allclose(expected_update(weights, 4, old, NOW), expected, atol=1e-13)


def test_a_function_of_subsets_agrees_with_exact_objectives_and_is_silent_without_signal():
    rewards, answers = RNG.random((3, 9)), np.array(list("aabbbccda") * 3).reshape(3, 9)
    exact = advantages(rewards, "max@3")
    made = objective("subsets@3", value=lambda r, s, a: r.max())
    np.testing.assert_allclose(made(rewards), exact, atol=1e-12)  # all 84 subsets
    few = objective("subsets@3", value=lambda r, s, a: r.max() + len(set(a)), sets=20)
    np.testing.assert_array_equal(few(rewards, answers=answers), few(rewards, answers=answers))
    assert few(rewards, answers=answers).any()
    same = objective("subsets@3", value=lambda r, s, a: 0.1)
    assert not same(rewards, log_ratio=rewards).any()
    controlled = objective("subsets@3", value=lambda r, s, a: r.max(), sets=20, control="max")
    exact = advantages(rewards, "max@3", log_ratio=rewards)
    np.testing.assert_allclose(controlled(rewards, log_ratio=rewards), exact, atol=1e-12)
    for options, message in (
        ({}, "needs value="),
        ({"value": 3}, "value is a function"),
        ({"value": lambda r: 1.0}, "value is a function"),
        ({"value": max, "control": "best"}, "unknown control 'best'"),
    ):
        with pytest.raises(ValueError, match=message):
            objective("subsets@3", **options)
    with pytest.raises(ValueError, match="must return a finite number, got nan"):
        objective("subsets@3", value=lambda r, s, a: NAN)(rewards)
    with pytest.raises(ValueError, match="control='select' needs scores=, one per sample"):
        objective("subsets@3", value=lambda r, s, a: 1.0, control="select")(rewards)
    for worth in ("much", None):
        with pytest.raises(ValueError, match=f"must return a finite number, got {worth!r}"):
            objective("subsets@3", value=lambda r, s, a, worth=worth: worth)(rewards)
    with pytest.raises(ValueError, match=r"sets=2 is too few for 3 of 9 samples.*at least 3"):
        objective("subsets@3", value=lambda r, s, a: 1.0, sets=2)(rewards)
    with pytest.raises(ValueError, match="answers must be texts, numbers or None"):
        advantages(rewards[0], "maj@3", answers=[{"a"}] * 9)
    with pytest.raises(ValueError, match="turn answers that are lists or tuples into texts"):
        advantages(rewards[0], "maj@3", answers=[(1, 2)] * 9)


@pytest.mark.parametrize(
    ("n", "k"), [(6, 2), (7, 2), (7, 6), (9, 5), (10, 5), (512, 2), (512, 511)]
)
def test_the_smallest_design_has_every_sample_in_some_sets_and_out_of_others(n, k):
    least = math.ceil(n / min(k, n - k))
    sets = design(n, k, least)
    assert sets.shape == (min(least, math.comb(n, k)), k)
    counts = np.bincount(sets.reshape(-1), minlength=n)
    assert all(len(set(each)) == k for each in sets.tolist())
    assert 0 < counts.min() <= counts.max() < len(sets)


def test_log_ratios_of_any_size_scale_a_function_of_subsets():
    rewards, logs = RNG.random(8), RNG.normal(size=8)
    made = objective("subsets@3", value=lambda r, s, a: r.max(), sets=20)
    once = made(rewards, log_ratio=logs)
    far = made(rewards, log_ratio=logs - 200.0)
    np.testing.assert_allclose(far, once * math.exp(-600.0), rtol=1e-9)
    assert not made(rewards, log_ratio=logs - 900.0).any()
    with pytest.raises(ValueError, match=r"do not fit into float64.*truncate="):
        made(rewards, log_ratio=logs + 900.0)


@pytest.mark.parametrize(
    "text", ["select@2", "select@2:soft", "maj@2", "maj@2:weighted:none", "retry@2:tokens"]
)
def test_no_groups_have_no_advantages(text):
    none = np.zeros((0, 5))
    inputs: dict[str, Any] = {"scores": none, "answers": none, "tokens": none, "rng": 0}
    made = objective(text, price=0.1) if "retry" in text else objective(text)
    for off in (None, none):
        assert made(none, log_ratio=off, **inputs).shape == (0, 5)


@pytest.mark.parametrize("baseline", ["", ":loo-1", ":none"])
def test_equal_scores_are_the_mean_and_scores_equal_to_rewards_are_max_at_k(baseline):
    rewards, logs = RNG.choice([0.0, 0.2, 0.9], (6, 7)), RNG.normal(size=(6, 7)) * 0.4
    for k, off in product((1, 2, 5), (None, logs)):
        best = advantages(rewards, f"max@{k}{baseline}", log_ratio=off)
        same = advantages(rewards, f"select@{k}{baseline}", scores=rewards, log_ratio=off)
        np.testing.assert_allclose(same, best, atol=2e-14)
        if not baseline and off is None:
            tied = advantages(rewards, f"select@{k}", scores=np.full((6, 7), 3.0))
            np.testing.assert_allclose(tied, advantages(rewards, "mean"), atol=2e-15)


def test_select_knows_the_order_of_scores_alone_and_differences_of_rewards_alone():
    rewards, scores = RNG.random((5, 8)), RNG.integers(0, 4, (5, 8)).astype(float)
    first = advantages(rewards, "select@3", scores=scores)
    moved = advantages(rewards + 7.0, "select@3", scores=np.exp(scores) - 5)
    np.testing.assert_allclose(moved, first, atol=1e-12)
    assert advantages([1.0, 0.0, 0.0], "select@2", scores=[2.0, 3.0, 1.0])[1] < 0


def test_no_signal_exactly_when_the_best_scored_have_one_reward():
    scores = np.array([3.0, 7.0, 1.0, 5.0, 2.0, 6.0])
    rewards = np.array([0.1, 0.7, 0.3, 0.7, 0.2, 0.7])  # k = 4: the best three are equal
    assert not advantages(rewards, "select@4", scores=scores).any()
    assert not advantages(rewards, "select@4", scores=scores, log_ratio=scores / 9).any()
    assert advantages(rewards, "select@3", scores=scores).any()


@pytest.mark.parametrize("text", ["select@3", "select@3:loo-1", "mean+select@2", "select@4..2"])
@pytest.mark.parametrize("library", ["torch", "jax"])
def test_libraries_agree_also_while_jax_traces(text, library, x64):
    to = torch.tensor if library == "torch" else jax.numpy.asarray
    rewards, scores = RNG.random((4, 9)), RNG.choice([-np.inf, 0.0, 1.0], (4, 9))
    arrays = {"scores": scores, "log_ratio": RNG.normal(size=(4, 9)) * 0.3}
    for names in (("scores",), ("scores", "log_ratio")):
        inputs: dict[str, Any] = {name: to(arrays[name]) for name in names}
        plain: dict[str, Any] = {name: arrays[name] for name in names}
        expected = advantages(rewards, text, progress=0.5, **plain)
        got = advantages(to(rewards), text, progress=0.5, **inputs)
        np.testing.assert_allclose(np.asarray(got), expected, atol=1e-12)
        if library == "jax":
            made = objective(text)
            traced = jax.jit(lambda r, i, f=made: f(r, progress=0.5, check=False, **i))
            np.testing.assert_allclose(traced(to(rewards), inputs), expected, atol=1e-12)


def test_ragged_groups_and_dead_samples_are_the_groups_alone():
    rewards, scores = RNG.random(13), RNG.integers(0, 3, 13).astype(float)
    ids = RNG.permutation(np.repeat([0, 1], [8, 5]))
    rewards[2] = NAN
    scores[2] = NAN  # a sample that is not live may have any score
    got = advantages(rewards, "select@3", scores=scores, groups=ids)
    for group in (0, 1):
        here = (ids == group) & ~np.isnan(rewards)
        alone = advantages(rewards[here], "select@3", scores=scores[here])
        np.testing.assert_allclose(got[here], alone, atol=1e-14)
    assert got[2] == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "objective select@2 needs scores=, one per sample"),
        ({"scores": [1.0, NAN, 0.0]}, "scores must be a number for every live sample, got nan"),
        ({"scores": [1.0, 0.0]}, "scores must have the shape of rewards"),
        ({"scores": torch.zeros(3)}, "arrays of one library"),
        ({"scores": ["a", "b", "c"]}, "scores must be real numbers"),
    ],
)
def test_bad_scores_are_one_sentence(given, message):
    with pytest.raises(ValueError, match=message):
        advantages([1.0, 0.0, 0.5], "select@2", **given)


def test_what_an_objective_needs_is_known_before_a_run():
    assert objective("mean/50%/select@2").needs == {"scores", "progress"}
    with pytest.raises(ValueError, match="select@2 has none: use off_policy='exact'"):
        objective("select@2", off_policy="first-order")
    with pytest.raises(ValueError, match="with 8 samples use select@8:loo-1 or select@8:none"):
        objective("select@8").require_samples(8)


def soft_choice(rewards, scores, subset):
    """One of the subset, with a chance in proportion to e^score."""
    weights = np.exp(np.array([scores[j] for j in subset]))
    if not weights.any():
        return np.mean([rewards[j] for j in subset])
    return weights @ [rewards[j] for j in subset] / weights.sum()


def test_the_value_of_a_soft_choice_is_its_definition_over_subsets():
    for scores in (
        RNG.normal(size=7),
        RNG.choice([-np.inf, 0.0, 2.0], 7),
        1e4 * np.arange(7.0) + [0, 0, -0.3, -1e4, 0, 0, 0],  # far apart, and beside each other
        np.full(7, -np.inf),
    ):
        rewards = RNG.normal(size=7) + 1e-3
        found = PROCEDURES["select@k:soft"].curve(rewards[None], 7, scores=scores[None])[0]
        shifted = scores - (scores.max() if np.isfinite(scores.max()) else 0.0)
        for k in range(1, 8):
            if scores.max() > 1e3:  # the softmax of each subset by itself
                values = [
                    soft_choice(rewards, scores - max(scores[j] for j in each), each)
                    for each in combinations(range(7), k)
                ]
            else:
                values = [soft_choice(rewards, shifted, each) for each in combinations(range(7), k)]
            assert found[k - 1] == pytest.approx(np.mean(values), abs=1e-12)


@pytest.mark.parametrize("baseline", ["", ":loo-1", ":none"])
@pytest.mark.parametrize("is_off_policy", [False, True])
def test_soft_weights_are_those_of_hard_choices_over_noise(baseline, is_off_policy):
    """Integrated over the noise they are the definition: the mean over many draws goes there."""
    rewards, scores = np.array([0.0, 1.0, 0.4, 0.0, 0.7]), np.array([1.0, -0.5, 0.3, 0.0, -np.inf])
    logs = np.array([0.3, -0.2, 0.1, 0.0, -0.4]) * is_off_policy
    expected = by_definition(
        partial(soft_choice, rewards, scores), np.exp(logs), 2, baseline.strip(":")
    )
    many = 4_000
    got = advantages(
        np.tile(rewards, (many, 1)),
        f"select@2:soft{baseline}",
        scores=np.tile(scores, (many, 1)),
        log_ratio=np.tile(logs, (many, 1)) if is_off_policy else None,
        rng=0,
    )
    error = 5 * got.std(axis=0) / np.sqrt(many) + 1e-12
    assert (np.abs(got.mean(axis=0) - expected) < error).all()
    assert error.max() < 0.04


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_noise_belongs_to_seed_prompt_and_sample_in_every_library(library, x64):
    to = TO[library]
    rewards, scores = RNG.random((3, 6)), RNG.normal(size=(3, 6))
    uniform = np.random.default_rng(5).random((3, 6, 16))
    noisy = scores[..., None] - np.log(-np.log(uniform))
    expected = np.mean(
        [advantages(rewards, "select@2", scores=noisy[..., d]) for d in range(16)], axis=0
    )
    inputs = {"scores": to(scores), "rng": 5}
    got = advantages(to(rewards), "select@2:soft", **inputs)
    np.testing.assert_allclose(np.asarray(got), expected, atol=1e-13)


def test_a_lost_sample_changes_no_noise_of_others_and_noise_may_be_an_array():
    rewards, scores = RNG.random((3, 6)), RNG.normal(size=(3, 6))
    uniform = np.random.default_rng(5).random((3, 6, 16))
    got = advantages(rewards, "select@2:soft", scores=scores, rng=5)
    given = advantages(rewards, "select@2:soft", scores=scores, rng=uniform)
    np.testing.assert_array_equal(given, got)
    rewards[1, 2] = NAN
    for rows in (slice(None), slice(2)):
        lost = advantages(rewards[rows], "select@2:soft", scores=scores[rows], rng=5)
        np.testing.assert_array_equal(lost[0], got[0])
    with pytest.raises(ValueError, match="draws random numbers: rng= is needed"):
        advantages(rewards, "select@2:soft", scores=scores)
    for odd in (uniform[0], uniform[..., :0]):
        with pytest.raises(ValueError, match="rng as an array must have the shape"):
            advantages(rewards, "select@2:soft", scores=scores, rng=odd)


@pytest.mark.parametrize("old", [NOW, OLD], ids=["on policy", "off policy"])
@pytest.mark.parametrize(
    ("text", "k"), [("retry@3:tokens", 3), ("retry@3:tokens:loo-1", 3), ("retry@4:tokens:none", 4),
                    ("retry@1:tokens", 1)],
)  # fmt: skip
def test_the_tokens_of_retries_are_unbiased_by_enumeration(text, k, old):
    rewards, tokens = np.array([0.0, 1.0, 0.4, 1.0]), np.array([3.0, 8.0, 1.0, 20.0])
    ratio, price = np.log(softmax(NOW) / softmax(old)), 0.02
    made = objective(text, price=price)

    def weights(draws):
        off = {} if old is NOW else {"log_ratio": ratio[draws]}
        return made(rewards[draws], tokens=tokens[draws], **off)

    def worth(draw):
        at = next((at for at, each in enumerate(draw) if rewards[each] == 1), k - 1)
        used = 1.0 if rewards[draw[at]] == 1 else rewards[draw].max()
        return used - price * tokens[draw[: at + 1]].sum()

    expected = gradient_of(worth, k, NOW)
    np.testing.assert_allclose(expected_update(weights, 4, old, NOW), expected, atol=1e-13)


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("levels", [(0.0, 1.0), (0.0, 0.4, 1.0, 1.3)])
def test_the_tokens_of_retries_are_their_definition_over_the_orders_of_all_subsets(
    levels, library, x64
):
    to = TO[library]
    price, rewards, tokens = 0.07, RNG.choice(levels, 5), RNG.integers(0, 30, 5) * 1.0

    def worth(subset):
        results = []
        for order in permutations(subset):
            first = next((at for at, j in enumerate(order) if rewards[j] >= 1), len(order) - 1)
            used = rewards[order[first]] if rewards[order[first]] >= 1 else max(rewards[[*order]])
            results.append(used - price * tokens[[*order[: first + 1]]].sum())
        return np.mean(results)

    for k in range(1, 5) if library == "numpy" else (2,):
        got = advantages(to(rewards), f"retry@{k}:tokens", price=price, tokens=to(tokens))
        expected = by_definition(worth, np.ones(5), k, "")
        np.testing.assert_allclose(np.asarray(got), expected, atol=1e-12)
        curve = PROCEDURES["retry@k:tokens"].curve
        value = curve(to(rewards)[None], 5, price=price, tokens=to(tokens)[None])[0, k - 1]
        subsets = combinations(range(5), k)
        assert float(value) == pytest.approx(np.mean([worth(each) for each in subsets]), abs=1e-12)


def test_equal_tokens_are_a_price_of_draws_and_all_passes_of_one_length_no_signal():
    rewards, logs = RNG.integers(0, 2, (3, 8)) * 1.0, RNG.normal(size=(3, 8)) * 0.3
    expected = advantages(rewards, "retry@3", price=0.1)
    got = advantages(rewards, "retry@3:tokens", price=0.02, tokens=np.full((3, 8), 5.0))
    np.testing.assert_allclose(got, expected, atol=1e-13)
    for reward in (0.0, 1.0):
        same = advantages(
            np.full(6, reward), "retry@3:tokens", price=0.1, tokens=np.full(6, 7.0),
            log_ratio=logs[0, :6],
        )  # fmt: skip
        assert not same.any()
    short, long = advantages(np.ones(2), "retry@1:tokens", price=0.1, tokens=[1.0, 5.0])
    assert short > 0 > long
    for given, message in (
        (None, "objective retry@3:tokens needs tokens=, one per sample"),
        ([1.0], "tokens must have the shape of rewards"),
        ([1.0] * 5 + [NAN], "tokens must be a number of at least 0"),
        ([1.0] * 5 + [-2.0], "tokens must be a number of at least 0"),
    ):
        with pytest.raises(ValueError, match=message):
            advantages(np.ones(6), "retry@3:tokens", price=0.1, tokens=given)
    with pytest.raises(ValueError, match=r"needs price=, what a draw .* costs.*try price=0.02"):
        objective("retry@3")


def test_a_vote_without_baseline_keeps_its_digits_where_the_ratios_are_worlds_apart():
    answers, rewards = ["c", None, "b", "a", None], np.array([0.0, 0.0, 0.0, 1.0, 0.0])
    logs = np.array([7.0, -11.0, 31.0, -25.0, 10.0])
    worth = partial(vote, rewards, answers, np.ones(5), "")
    for k in (1, 2, 3):
        got = advantages(rewards, f"maj@{k}:none", answers=answers, log_ratio=logs)
        expected = by_definition(worth, np.exp(logs), k, "none")
        np.testing.assert_allclose(got, expected, rtol=1e-11)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("select@2", {}),
        ("maj@2", {}),
        ("retry@3", {"price": 0.3}),
        ("retry@2:tokens:none", {"price": 0.1}),
        ("subsets@2", {"sets": 4, "value": lambda rewards, scores, answers: rewards.max()}),
        ("subsets@2", {"sets": 4, "control": "max", "value": lambda rewards, *_: rewards.min()}),
    ],
)
def test_samples_of_several_policies_have_the_update_of_samples_of_one(text, options):
    """Over all draws of four samples, each of its own policy and with its own weight."""
    now = np.array([0.5, 0.3, 0.2])
    old = np.array([[0.2, 0.5, 0.3], [0.4, 0.3, 0.3], [0.6, 0.3, 0.1], [0.3, 0.3, 0.4]])
    draws = np.array(list(product(range(3), repeat=4)))
    chance = np.prod(old[np.arange(4), draws], axis=1)
    columns: dict[str, Any] = {
        "scores": np.array([1.0, 0.0, 2.0])[draws],
        "tokens": np.array([3.0, 1.0, 5.0])[draws],
        "answers": draws,
        "log_ratio": np.log(now)[draws] - np.log(old)[np.arange(4), draws],
    }

    def update(alpha):
        weights = objective(text, **options)(
            np.array([0.0, 1.0, 0.4])[draws], sample_weights=alpha, **columns
        )
        scores = np.eye(3)[draws] - now
        return np.einsum("d,di,dia->a", chance, weights, scores) / 4

    weighted, plain = update(np.array([1.0, 0.3, 0.6, 2.0])), update(None)
    np.testing.assert_allclose(weighted, plain, atol=1e-14)
    assert np.abs(plain).max() > 0.05
