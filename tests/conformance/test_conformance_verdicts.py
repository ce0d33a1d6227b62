"""What the judge says: about estimators that are right, broken by hand, or strangely written."""

import dataclasses
import functools
import io
import math
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import bestofk
from bestofk.estimator_checks import Conformance, Finding, conformance
from bestofk.objectives import advantages, objective

judge: Callable[..., Conformance] = functools.partial(conformance, quiet=True)


def max_at_3(rewards: Any) -> Any:
    return advantages(rewards, "max@3")


def said(result: Conformance, check: str) -> Finding:
    finding = result.finding(check)
    assert finding is not None
    return finding


def q_values(rewards: np.ndarray, k: int) -> np.ndarray:
    return np.asarray(advantages(rewards, f"max@{k}:none")) / k


# --- right estimators ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize(
    ("text", "k", "n"),
    [
        ("max@3", 3, 5),
        ("max@3:loo", 3, 4),
        ("max@3:loo-1", 3, 3),
        ("max@2:none", 2, 6),
        ("mean", 1, 4),
        ("max@5", 5, 12),
        ("max@16", 16, 40),
    ],
)
def test_unbiased_objectives_are_found_exact(text: str, k: int, n: int, seed: int) -> None:
    result = judge(text, k, n, seed=seed)
    assert result.verdict == "exact"
    assert result.bias < 1e-9
    assert (result.convention, result.defects) == ("1", ())


@pytest.mark.parametrize("text", ["max@3", "max@3:loo-1", "max@3:none"])
def test_exact_off_policy_weights_are_found_exact_at_every_spread(text: str) -> None:
    result = judge(text, 3, 5, off_policy=True)
    assert result.verdict == "exact"
    assert {case.spread for case in result.cases} == {0.0, 0.05, 0.2, 0.5, 1.0}
    assert max(case.bias for case in result.cases) < 1e-9
    assert result.defects == ()


def test_pass_at_k_is_exact_and_its_refusal_of_real_rewards_is_respected() -> None:
    result = judge("pass@3", 3)
    assert result.verdict == "exact"
    assert result.real is None
    real = said(result, "real")
    assert real.status == "ok"
    assert "raise an error" in str(result)


def test_centring_is_reported() -> None:
    assert judge("max@3", 3).centred is True
    assert judge("max@3:none", 3).centred is False
    assert judge("max@3", 3, off_policy=True).centred is None


# --- conventions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factor", "name"),
    [
        (1 / 7, "1/n"),
        (7.0, "n"),
        (3.0, "k"),
        (1 / 3, "1/k"),
        (1 - 3 / 7, "1-k/n"),
        ((7 - 3) / 3, "(n-k)/k"),
        ((1 - 3 / 7) / 7, "(1-k/n)/n"),
        (4 / 21, "(n-k)/(kn)"),
        (-1.0, "-1"),
    ],
)
def test_a_lost_factor_is_named(factor: float, name: str) -> None:
    result = judge(lambda r: factor * advantages(r, "max@3"), 3, 7)
    assert result.verdict == "scaled"
    assert result.convention == name
    assert result.scale == pytest.approx(factor)


def test_other_factors_are_described() -> None:
    result = judge(lambda r: 0.123 * advantages(r, "max@3"), 3, 7)
    assert (result.verdict, result.convention) == ("scaled", "")
    assert "0.123 times" in result.summary
    assert "wrong way" in judge(lambda r: -advantages(r, "max@3"), 3).summary
    assert judge(lambda r: advantages(r, "max@3") / 2, 3, 6).convention == "k/n = 1-k/n"


# --- estimators broken by hand ------------------------------------------------------------------


def own_sample(rewards: np.ndarray) -> np.ndarray:
    right = q_values(rewards, 3) * rewards
    return 3 * (right - right.mean(axis=-1, keepdims=True))


def keeps_raw(rewards: np.ndarray) -> np.ndarray:
    weights = advantages(rewards, "max@3")
    return np.where(rewards == rewards.max(axis=-1, keepdims=True), weights, rewards)


def wrong_a_neg(rewards: np.ndarray) -> np.ndarray:
    if not np.isin(rewards, (0, 1)).all():
        raise ValueError("0/1 only")
    rho = bestofk.pass_at_k(rewards, 3)[..., None]
    sigma = np.sqrt(rho * (1 - rho)) + 1e-6
    return np.where(rewards == 1, (1 - rho) / sigma, -rho / sigma)


def raw_unless_zero_one(rewards: np.ndarray) -> np.ndarray:
    fine = np.isin(rewards, (0, 1)).all(axis=-1, keepdims=True)
    return np.where(fine, advantages(rewards, "max@3"), rewards)


def forgets_to_sort(rewards: np.ndarray) -> np.ndarray:
    return np.asarray(advantages(np.sort(rewards, axis=-1), "max@3"))


@pytest.mark.parametrize(
    ("fn", "verdict", "words"),
    [
        (own_sample, "biased", "cosine"),
        (keeps_raw, "biased", "cosine"),
        (forgets_to_sort, "no signal", "zero under every policy"),
        (wrong_a_neg, "varying scale", "right direction"),
        (raw_unless_zero_one, "0/1 only", "biased on real ones"),
        ("passk-training@3", "biased", "a normaliser"),
        (lambda r: advantages(r, "max@4"), "other objective", "max@4"),
        ("mean", "other objective", "mean reward"),
        (lambda r: 0 * r, "no signal", "zero under every policy"),
    ],
)
def test_what_is_broken_is_named(fn: Any, verdict: str, words: str) -> None:
    result = judge(fn, 3, 6)
    assert result.verdict == verdict
    assert words in result.summary
    assert not result.unbiased
    order = said(result, "order")
    assert (order.status == "bad") == (fn is forgets_to_sort)


def test_ignoring_ratios_is_right_on_policy_only_and_gets_worse_with_the_spread() -> None:
    result = judge(objective("max@3", off_policy="none"), 3, 5, off_policy=True)
    assert result.verdict == "on policy only"
    worst = [
        max(case.bias for case in result.cases if case.spread == spread)
        for spread in (0.0, 0.05, 0.2, 0.5)
    ]
    assert worst[0] < 1e-9
    assert worst == sorted(worst)
    assert worst[-1] > 0.1


# --- edges --------------------------------------------------------------------------------------


def test_raising_for_n_below_k_is_praised() -> None:
    finding = said(judge("max@4", 4), "n < k")
    assert (finding.status, finding.text) == ("ok", "raises and names both numbers")


@pytest.mark.parametrize("answer", [0.0, 1.0, np.nan])
def test_any_number_for_n_below_k_is_a_defect(answer: float) -> None:
    def silent(rewards: np.ndarray) -> np.ndarray:
        if rewards.shape[-1] < 4:
            return np.full(rewards.shape, answer)
        return np.asarray(advantages(rewards, "max@4"))

    result = judge(silent, 4)
    assert result.verdict == "exact"
    assert [finding.check for finding in result.defects] == ["n < k"]


def test_a_function_whose_k_is_n_is_not_blamed_for_smaller_groups() -> None:
    assert said(judge("bon-max-second", 4, 4), "n < k").status == "note"


def _padding(fn: Callable[..., Any]) -> tuple[str, str]:
    finding = said(judge(fn, 1, 4), "padding")
    return finding.status, finding.text


def test_what_a_dead_sample_does_is_told_apart() -> None:
    assert _padding(lambda r: advantages(r, "mean"))[0] == "ok"
    status, text = _padding(lambda r: r - r.mean(axis=-1, keepdims=True))
    assert (status, "siblings NaN" in text) == ("note", True)

    def as_zero(rewards: np.ndarray) -> np.ndarray:
        return np.asarray(advantages(np.nan_to_num(rewards), "mean"))

    status, text = _padding(as_zero)
    assert (status, "as a sample with reward 0" in text) == ("bad", True)

    def refuses(rewards: np.ndarray) -> np.ndarray:
        if np.isnan(rewards).any():
            raise ValueError("no NaN")
        return np.asarray(advantages(rewards, "mean"))

    assert _padding(refuses)[0] == "note"


def test_nan_without_contrast_is_a_defect_and_the_rest_is_still_judged() -> None:
    def z_score(rewards: np.ndarray) -> np.ndarray:
        return (rewards - rewards.mean(-1, keepdims=True)) / rewards.std(-1, keepdims=True)

    result = judge(z_score, 1, 5)
    assert {"not finite", "c = 0", "c = n"} <= {finding.check for finding in result.defects}
    assert result.cosine > 0.9
    assert "fails on some groups" in result.summary


def test_a_crash_on_some_groups_is_a_finding() -> None:
    def crashes(rewards: Sequence[float]) -> list[float]:
        mean = sum(rewards) / len(rewards)
        return [reward / mean - 1 for reward in rewards]

    result = judge(crashes, 2, 4, kind="list")
    raises = said(result, "raises")
    assert "ZeroDivisionError" in raises.text
    assert "[0, 0, 0, 0]" in raises.text


def test_integer_rewards_that_give_zeros_are_caught() -> None:
    def keeps_dtype(rewards: np.ndarray) -> np.ndarray:
        return np.asarray(advantages(rewards.astype(float), "max@3") / 10).astype(rewards.dtype)

    assert said(judge(keeps_dtype, 3), "integers").status == "bad"


def test_writing_into_the_input_is_caught() -> None:
    def in_place(rewards: np.ndarray) -> np.ndarray:
        rewards -= rewards.mean(axis=-1, keepdims=True)
        return rewards

    result = judge(in_place, 1)
    assert result.convention == "(n-1)/n"
    assert [finding.check for finding in result.defects] == ["input"]
    assert result.verdict == "in part"


def test_ties_broken_by_position_are_noticed() -> None:
    def first_best_only(rewards: np.ndarray) -> np.ndarray:
        first = np.arange(rewards.shape[-1]) == rewards.argmax(axis=-1)[..., None]
        return np.where(first, rewards.max(axis=-1, keepdims=True), 0.0)

    finding = said(judge(first_best_only, 3, 3), "ties")
    assert "different advantages" in finding.text


def test_shift_and_scale_are_reported() -> None:
    def texts(fn: Any) -> tuple[str, str]:
        result = judge(fn, 2, 5)
        shift, scale = result.finding("shift"), result.finding("scale")
        assert shift is not None
        assert scale is not None
        return shift.text, scale.text

    canonical, none, grpo = texts("max@2"), texts("max@2:none"), texts("grpo")
    assert "changes nothing" in canonical[0]
    assert "linear" in canonical[1]
    assert "changes the advantages" in none[0]
    assert "changes nothing" in grpo[0]
    assert "normaliser" in grpo[1]


def test_weights_by_count_are_the_function_s_own() -> None:
    table = judge("max@4", 4, 6).by_count
    right, wrong = table[1]
    assert (right, wrong) == pytest.approx((4.0, -0.8))
    assert table[0][1] == table[6][0] == 0.0


# --- strangers ----------------------------------------------------------------------------------


def _rloo_in_lists(rewards: list[float]) -> list[float]:
    if not isinstance(rewards, list):
        raise TypeError("lists please")
    n, total = len(rewards), sum(rewards)
    return [r - (total - r) / (n - 1) for r in rewards]


def test_plain_lists_work() -> None:
    result = judge(_rloo_in_lists, 1, 5)
    assert result.verdict == "exact"
    assert result.called_with == "plain lists (n,), one group at a time"
    batch = said(result, "batch")
    assert batch.status == "note"


def _rloo_in_torch(rewards: torch.Tensor) -> torch.Tensor:
    return (rewards - rewards.mean(dim=-1, keepdim=True)) * (
        rewards.shape[-1] / (rewards.shape[-1] - 1)
    )


def test_torch_functions_work_in_both_precisions() -> None:
    result = judge(_rloo_in_torch, 1, 5)
    assert result.verdict == "exact"
    assert result.called_with == "torch tensors (groups, n)"
    assert judge(lambda r: _rloo_in_torch(r.float()), 1, 5).verdict == "exact"


def test_weights_that_carry_a_gradient_work() -> None:
    def learnt(rewards: torch.Tensor) -> torch.Tensor:
        one = torch.ones((), requires_grad=True, dtype=rewards.dtype)
        return one * _rloo_in_torch(rewards)

    assert judge(learnt, 1, 5, kind="torch").verdict == "exact"


def test_the_library_can_be_chosen_where_it_matters() -> None:
    def z(rewards: Any) -> Any:  # ddof is 0 in NumPy and 1 in torch
        return (rewards - rewards.mean(-1)) / (rewards.std(-1) + 1e-6)

    by_numpy, by_torch = judge(z, 1, 5, kind="numpy"), judge(z, 1, 5, kind="torch")
    assert by_numpy.by_count[1][0] == pytest.approx(2.0, abs=1e-4)
    assert by_torch.by_count[1][0] == pytest.approx(2 * np.sqrt(4 / 5), abs=1e-4)


def test_batches_only_and_tuples_work() -> None:
    def like_a_trainer(rewards: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        groups, n = rewards.shape
        weights = np.asarray(advantages(rewards, "max@2"))
        return weights.reshape(groups, n), rewards

    result = judge(like_a_trainer, 2)
    assert result.verdict == "exact"
    assert result.called_with == "NumPy arrays (groups, n)"


def test_a_batch_whose_groups_leak_into_each_other_is_judged_row_by_row() -> None:
    def over_everything(rewards: np.ndarray) -> np.ndarray:
        return (rewards - rewards.mean()) * (rewards.shape[-1] / (rewards.shape[-1] - 1))

    result = judge(over_everything, 1, 5)
    assert (result.verdict, result.bias < 1e-12) == ("in part", True)
    assert "see batch below" in result.summary
    batch = said(result, "batch")
    assert batch.status == "bad"
    assert "change each other" in batch.text


@pytest.mark.parametrize(("k", "n"), [(1, 2), (1, 3), (2, 4), (3, 5)])
def test_a_normaliser_over_the_batch_is_never_exact(k: int, n: int) -> None:
    def always(rewards: np.ndarray) -> np.ndarray:
        weights = np.asarray(advantages(rewards, f"max@{k}"))
        return weights / (weights.std() + 1e-9)

    def of_several_groups(rewards: np.ndarray) -> np.ndarray:
        alone = rewards.ndim == 1 or len(rewards) == 1
        return np.asarray(advantages(rewards, f"max@{k}")) if alone else always(rewards)

    for fn in (always, of_several_groups):
        result = judge(fn, k, n)
        assert result.verdict not in ("exact", "scaled"), fn
        assert said(result, "batch").status == "bad"


def test_a_slow_reference_ends_with_a_verdict_and_says_what_was_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Like a loop over subsets: C(256, 3) of them take a minute, those of 12 samples no time. It
    sleeps, so that a busy machine has time for the rest."""

    def by_definition(rewards: np.ndarray) -> Any:
        (n,) = rewards.shape
        time.sleep(2e-5 * max(0, math.comb(n, 3) - 300))
        return max_at_3(rewards)

    result = judge(by_definition, 3, seconds=60)
    assert result.verdict == "exact"
    elsewhere = said(result, "elsewhere").text
    assert "groups of 12" in elsewhere
    assert re.search(r"too slow to try at n = .*256", elsewhere)

    def slow(rewards):
        (_,) = rewards.shape
        time.sleep(0.1)
        return max_at_3(rewards)

    with pytest.raises(
        ValueError, match=r"groups of 5 samples take about .* judge with a smaller n"
    ):
        conformance(slow, 3, seconds=5)
    assert "conformance: " in capsys.readouterr().err


def test_a_dead_sample_at_rounding_error_is_not_held_against_the_function() -> None:
    def at(size: float) -> Callable[[np.ndarray], np.ndarray]:
        return lambda r: np.where(np.isnan(r), size, advantages(r, "max@3"))

    assert [judge(at(size), 3).verdict for size in (-1e-17, 1e-12, 1e-6)] == [
        "exact", "exact", "in part",
    ]  # fmt: skip

    def masked(rewards: np.ndarray, live: Any = None) -> np.ndarray:
        weights = np.asarray(advantages(rewards, "max@3", live=live))
        return weights if live is None else np.where(live, weights, -1e-17)

    assert judge(masked, 3).verdict == "exact"


def test_the_name_is_that_of_the_function_wherever_its_package_is_imported() -> None:
    assert bestofk.conformance is conformance


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (lambda r: r.sum(), r"returned shape \(\)"),
        (lambda r: r[:-1], r"returned shape \(3,\) for rewards of shape \(4,\)"),
        (lambda r: None, "returned None"),
        (lambda r: "advantages", "returned str, not numbers"),
        (lambda r: 1 / 0, "ZeroDivisionError"),
        (lambda r, extra: r, "TypeError"),
        (lambda: 0, "TypeError"),
    ],
)
def test_a_bad_function_gets_a_diagnosis(fn: Callable[..., Any], why: str) -> None:
    result = judge(fn, 2)
    assert result.verdict == "unusable"
    assert re.search(why, result.summary)
    assert str(result).startswith("<lambda>: unusable with n = 4")
    assert np.isnan(result.bias)


def test_a_refusal_of_this_n_carries_its_reason() -> None:
    result = judge("max@4", 4, 4)
    assert result.verdict == "unusable"
    assert "max@4:loo-1" in result.summary


# --- the interface ------------------------------------------------------------------------------


def test_it_prints_a_sentence_first_and_can_be_silenced(capsys: pytest.CaptureFixture[str]) -> None:
    result = bestofk.conformance(max_at_3, 3)
    printed = capsys.readouterr().out
    assert printed == f"{result}\n"
    assert printed.splitlines()[0] == (
        "max_at_3: unbiased for the gradient of max@3, in the mean convention"
    )
    assert all(len(line) < 160 for line in printed.splitlines())
    elsewhere = io.StringIO()
    conformance(max_at_3, 3, file=elsewhere)
    conformance(max_at_3, 3, quiet=True)
    assert elsewhere.getvalue() == printed
    assert capsys.readouterr().out == ""


def test_the_result_is_frozen_data() -> None:
    result = judge("max@2", 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.k = 3  # type: ignore[misc]
    assert dataclasses.asdict(result)["cases"][0]["kind"] == "0/1"


def test_default_n_leaves_room_for_a_baseline() -> None:
    assert judge("max@2", 2).n == 4
    assert judge("mean", 1).n == 4
    assert judge("max@6", np.int64(6)).n == 8


@pytest.mark.parametrize("k", [2, 4, 6, 7])
def test_enumeration_stays_below_twenty_thousand(k: int) -> None:
    assert 10 < judge(f"max@{k}", k).outcomes <= 20_000


@pytest.mark.parametrize(
    ("k", "n", "message"),
    [
        (0, None, r"k .* at least 1, got 0"),
        (True, None, r"k .* whole number"),
        (2.5, None, r"got 2.5"),
        (4, 3, r"n = 3 with k = 4"),
        (1, 1, r"n .* at least 2, got 1"),
    ],
)
def test_bad_k_and_n_are_refused(k: Any, n: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        judge(max_at_3, k, n)


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(TypeError, match="got float"):
        judge(3.0, 2)
    with pytest.raises(ValueError, match="kind is"):
        judge(max_at_3, 3, kind="cupy")
    with pytest.raises(ValueError, match="did you mean"):
        judge("mux@3", 3)


def test_order_dependence_with_many_outcomes_is_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match="n ≤ 10"):
        judge(lambda r: r * np.arange(r.shape[-1]), 2, 30)


# --- what one n, ratios of 1 or small rewards do not show -----------------------------------------


def test_an_estimator_that_is_right_for_one_n_only_is_found_out() -> None:
    def scaled_as_if_n_were_5(rewards: np.ndarray) -> np.ndarray:
        n = rewards.shape[-1]
        plain = advantages(rewards, "max@3")
        return plain if n < 8 else plain + 0.3 * advantages(rewards, "mean")

    result = judge(scaled_as_if_n_were_5, 3, 5)
    assert result.verdict == "this n only"
    sizes = said(result, "other n")
    assert (sizes.status, "n = 8" in sizes.text) == ("bad", True)
    good = said(judge("max@3", 3, 5), "other n")
    assert good.text == "holds at n = 4, 8 too; raises at n = 3"


def test_a_tied_best_with_unequal_ratios_is_judged() -> None:
    def one_ratio_for_the_best(rewards: np.ndarray, logs: np.ndarray) -> np.ndarray:
        best = rewards == rewards.max(axis=-1, keepdims=True)
        shared = (logs * best).sum(-1, keepdims=True) / best.sum(-1, keepdims=True)
        return advantages(rewards, "max@2:none", log_ratio=np.where(best, shared, logs))

    result = judge(one_ratio_for_the_best, 2, 4, off_policy=True)
    assert result.verdict == "on policy only"
    assert all(case.bias < 1e-9 for case in result.cases if "tied" not in case.label)


def test_edges_off_policy_are_tried_with_ratios_that_differ() -> None:
    def moves_with_the_offset(rewards: np.ndarray, logs: np.ndarray) -> np.ndarray:
        ratio = np.exp(logs)
        n = rewards.shape[-1]
        others = ((ratio * rewards).sum(-1, keepdims=True) - ratio * rewards) / (n - 1)
        return ratio * (rewards - others)

    result = judge(moves_with_the_offset, 1, 4, off_policy=True)
    assert result.verdict == "exact"
    for check in ("shift", "c = n"):
        assert said(result, check).status == "note"
    ours = judge("mean", 1, 4, off_policy=True)
    for check in ("shift", "c = n"):
        assert said(ours, check).status == "ok"


@pytest.mark.parametrize("limit", [5.0, 50.0, 2000.0])
def test_clipped_rewards_are_found(limit: float) -> None:
    result = judge(lambda r: advantages(np.clip(r, -limit, limit), "max@2"), 2)
    assert result.verdict == "in part"
    scale = said(result, "scale")
    assert (scale.status, "clipped" in scale.text) == ("bad", True)


@pytest.mark.parametrize("seed", range(4))
def test_a_randomised_estimator_is_judged_by_its_mean(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def noisy(rewards: np.ndarray) -> np.ndarray:
        n = rewards.shape[-1]
        return (rewards - rewards.mean()) * n / (n - 1) * rng.choice([0.5, 1.5])

    result = judge(noisy, 1, 4)
    assert result.verdict == "exact"
    assert result.finding("random") is not None
    assert "two calls differ: means over 64 draws" in result.summary
    off = judge(lambda r: noisy(r) + 0.5 * r * r, 1, 4)
    assert off.verdict == "0/1 only"  # there r² is r, and a share of the reward adds to the scale


def test_functions_with_live_are_asked_with_it() -> None:
    def honours(rewards: np.ndarray, live: Any = None) -> np.ndarray:
        return advantages(rewards, "max@2", live=live)

    def ignores(rewards: np.ndarray, live: Any = None) -> np.ndarray:
        return advantages(rewards, "max@2")

    for function, status in ((honours, "ok"), (ignores, "bad")):
        finding = said(judge(function, 2), "padding")
        assert (finding.status, "live=" in finding.text) == (status, True)


def test_variance_ranks_unbiased_estimators_whatever_their_scale() -> None:
    found = {text: judge(text, 3, 5).variance for text in ("max@3:none", "max@3", "max@3:loo-1")}
    assert found["max@3:none"] > found["max@3"] > found["max@3:loo-1"]
    tenth = judge(lambda r: advantages(r, "max@3") / 10, 3, 5).variance
    assert tenth == pytest.approx(found["max@3"], rel=1e-9)
    assert "variance" in str(judge("max@3", 3, 5))


def test_a_cut_of_the_ratio_is_not_called_a_matter_of_rewards() -> None:
    for limit in (0.1, 0.3, 0.6):
        result = judge(objective("max@3", truncate=limit), 3, 5, off_policy=True)
        assert result.verdict == "on policy only"


def _from_ten_samples_on(r: np.ndarray) -> np.ndarray:
    return advantages(r, "max@4") * (0.5 if r.shape[-1] >= 10 else 1.0)


def _all_different(r: np.ndarray) -> np.ndarray:
    different = (np.diff(np.sort(r)) > 0).all(axis=-1, keepdims=True)
    return advantages(r, "max@4") * np.where(different, 0.5, 1.0)


def _silent_below_zero(r: np.ndarray) -> np.ndarray:
    return advantages(r, "max@4") * (r >= 0).any(axis=-1, keepdims=True)


def _cancels(r: np.ndarray) -> np.ndarray:
    single = r.astype(np.float32)
    return advantages(((single + 1) ** 2 - (single - 1) ** 2) / 4, "max@4")


def _counts_the_dead(r: np.ndarray) -> np.ndarray:
    return advantages(np.nan_to_num(r), "max@4")


def _ignores_live(r: np.ndarray, live: Any = None) -> np.ndarray:
    return advantages(r, "max@4")


def _overflows(r: np.ndarray) -> np.ndarray:
    return advantages(r, "max@4") * (np.nan if r.shape[-1] > 170 else 1.0)  # as factorials do


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        (_counts_the_dead, "a NaN reward counts in n"),
        (_ignores_live, "live= marks as dead"),
        (_overflows, "groups of 256"),
        (_from_ten_samples_on, "groups of 12"),
        (_all_different, "rewards that all differ"),
        (_silent_below_zero, "negative rewards"),
        (_cancels, "rewards around 1,000"),
    ],
)
def test_what_is_wrong_only_on_groups_that_are_not_enumerated_is_not_exact(
    wrong: Callable[..., Any], where: str
) -> None:
    result = judge(wrong, 4, 6)
    assert result.verdict == "in part"
    assert "unbiased for the gradient of max@4" in result.summary
    assert any(where in finding.text for finding in result.defects)


def test_what_is_right_says_where_else_it_holds() -> None:
    assert judge("max@4", 4, 6).finding("elsewhere") == Finding(
        "elsewhere",
        "ok",
        "holds on rewards that all differ, negative rewards, groups of 12, groups of 24, groups "
        "of 64, groups of 256, rewards around 1,000",
    )


def test_off_policy_a_cut_of_large_ratios_and_a_gradient_that_flows_are_not_exact() -> None:
    def cut(rewards: np.ndarray, log_ratio: np.ndarray) -> np.ndarray:
        return advantages(rewards, "max@2", log_ratio=np.clip(log_ratio, -3, 3))

    result = judge(cut, 2, 4, off_policy=True)
    assert result.verdict == "in part"
    assert "log-ratios of ±5" in result.defects[0].text
    flowing = judge(lambda r, logs: logs.exp() * r, 1, 4, off_policy=True)
    assert flowing.verdict == "in part"
    assert "detach" in flowing.defects[-1].text
    assert judge(lambda r, logs: logs.detach().exp() * r, 1, 4, off_policy=True).verdict == "exact"
