"""Published estimators: known facts about their formulas, and the page of verdicts."""

from itertools import combinations
from math import comb
from pathlib import Path

import numpy as np
import pytest

import bestofk
import published as p
from bestofk.estimator_checks import Conformance, conformance
from oracles import Tabular, q_value, subset_mean

PAGE = Path(__file__).parents[2] / "research" / "conformance.md"


Judged = dict[str, list[tuple[p.PublishedEstimator, Conformance]]]


@pytest.fixture(scope="module")
def judged() -> Judged:
    return {
        title: [(entry, entry.judge()) for entry in entries] for title, entries in p.TABLES.items()
    }


@pytest.fixture(scope="module")
def verdicts(judged: Judged) -> dict[str, Conformance]:
    theirs = [*judged["Others, on policy"], *judged["Others, off policy"]]
    return {entry.name: result for entry, result in theirs}


@pytest.mark.slow
def test_pkpo_listing_is_found_to_be_sum_convention(verdicts: dict[str, Conformance]) -> None:
    for name in ("PKPO s", "PKPO loo", "PKPO loo-1"):
        assert verdicts[name].verdict == "scaled"
        assert verdicts[name].convention == "1/n"
        assert "sum convention" in verdicts[name].summary


def test_pkpo_restated_is_its_definition_over_subsets() -> None:
    rewards = np.array([0.3, 1.0, 0.3, -0.7, 0.6])
    for k in (2, 3, 4, 5):
        s = np.array([k / 5 * q_value(rewards, k, i) for i in range(5)])
        np.testing.assert_allclose(p.pkpo_s(rewards, k), s, atol=1e-12)
        lead = [
            sum(
                rewards[list(chosen)].max() - rewards[[j for j in chosen if j != i]].max()
                for chosen in combinations(range(5), k)
                if i in chosen
            )
            / comb(5, k)
            for i in range(5)
        ]
        np.testing.assert_allclose(p.pkpo_loo_minus_one(rewards, k), lead, atol=1e-12)
        if k < 5:
            loo = [
                s[i] - k / 4 * subset_mean(np.delete(rewards, i), k, lambda r: float(r.max()))
                for i in range(5)
            ]
            np.testing.assert_allclose(p.pkpo_loo(rewards, k), loo, atol=1e-12)


@pytest.mark.slow
def test_rllm_pkpo_is_one_minus_k_over_n_short_in_the_sum_convention(
    verdicts: dict[str, Conformance],
) -> None:
    assert verdicts["rLLM pkpo"].convention == "(1-k/n)/n"
    np.testing.assert_allclose(p.rllm_pkpo(np.array([1.0, 1, 0, 0]), 2) * 12, [1, 1, -1, -1])


@pytest.mark.slow
def test_pass_at_k_training_s_released_code(verdicts: dict[str, Conformance]) -> None:
    bare = verdicts["the same without its σ"]
    assert bare.verdict == "0/1 only"
    assert bare.zero_one is not None
    assert bare.zero_one.convention == "(n-k)/(kn)"
    released = verdicts["Pass@k Training, released code"]
    assert released.cosine < 0  # raw real rewards as advantages can point the wrong way
    assert not released.unbiased
    rewards = np.array([0.0, 1, 0, 0, 1, 0])
    np.testing.assert_allclose(
        p.passk_training_released(rewards, 4),
        bestofk.advantages(rewards, "passk-training@4"),
        rtol=1e-4,
    )


@pytest.mark.slow
def test_verl_grpo_passk_is_exact_without_std_and_off_direction_with_it(
    verdicts: dict[str, Conformance],
) -> None:
    assert verdicts["verl grpo_passk, std off"].convention == "1/n"
    with_std = verdicts["verl grpo_passk"]
    assert with_std.verdict == "0/1 only"
    assert with_std.real is not None
    assert with_std.real.cosine[0] < 0.98
    wide = np.array([0.0, 0.5, 1.0, 3.0])
    np.testing.assert_allclose(
        p.verl_grpo_passk(wide, std=False),
        bestofk.advantages(wide, "max@4:loo-1") / 4,
        atol=1e-12,
    )


@pytest.mark.slow
def test_easyr1_before_its_fix_is_biased(verdicts: dict[str, Conformance]) -> None:
    assert verdicts["EasyR1 grpo_passk before its fix"].verdict == "biased"
    np.testing.assert_allclose(
        p.easyr1_before_fix(np.array([0.2, 0.5, 0.5, 0.9]))[:3], [0.2, 0.5, 0.5]
    )


@pytest.mark.parametrize(("accuracy", "times"), [(0.5, 1.4), (0.8, 2.6)])
def test_maxrl_repository_s_pkpo_is_biased_by_accuracy(accuracy: float, times: float) -> None:
    """Its advantages leave out the factor k, so 1/k is what an unbiased form would have."""
    policy = Tabular(np.log([accuracy, 1 - accuracy]), np.array([1.0, 0.0]))
    update = policy.expected_update(
        lambda groups: np.array([p.maxrl_repository_pkpo(r, 3) for r in groups]), n=6
    )
    gradient = policy.max_gradient(3)
    assert update @ gradient / (gradient @ gradient) * 3 == pytest.approx(times)


@pytest.mark.slow
def test_maxrl_repository_s_pkpo_is_caught(verdicts: dict[str, Conformance]) -> None:
    result = verdicts["maxrl repository pkpo"]
    assert result.zero_one is not None
    assert result.zero_one.right_direction
    assert result.zero_one.constant is None
    assert not result.unbiased


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "low"), [("BoN-max mean", 1.2), ("BoN-max second, next distinct", 1.15)]
)
def test_bon_max_baselines_overshoot(
    verdicts: dict[str, Conformance], name: str, low: float
) -> None:
    result = verdicts[name]
    assert result.verdict == "biased"
    assert result.zero_one is not None
    assert result.n * result.zero_one.scale[1] > low
    assert result.zero_one.constant is None


def test_bon_max_mean_restated_is_ours() -> None:
    rewards = np.array([0.2, 0.9, 0.9, 0.4])
    np.testing.assert_allclose(
        p.bon_max_mean(rewards), bestofk.advantages(rewards, "bon-max-mean"), atol=1e-12
    )


@pytest.mark.slow
def test_first_order_is_right_until_the_policy_moves(verdicts: dict[str, Conformance]) -> None:
    result = verdicts["max@k paper, first order"]
    assert result.verdict == "on policy only"
    assert "1/n times" in result.summary
    rng = np.random.default_rng(0)
    rewards, log_ratio = rng.random(6), 0.3 * rng.standard_normal(6)
    ours = bestofk.advantages(rewards, "max@4:none", log_ratio=log_ratio, off_policy="first-order")
    np.testing.assert_allclose(6 * p.first_order(rewards, log_ratio, 4), ours, rtol=1e-9)


@pytest.mark.slow
def test_listing_3_as_printed_is_wrong(verdicts: dict[str, Conformance]) -> None:
    printed = verdicts["max@k paper, Listing 3"]
    assert printed.verdict == "biased"
    assert {"order", "shape"} <= {finding.check for finding in printed.defects}
    batch = printed.finding("batch")
    assert batch is not None
    assert "(5, 5, 6)" in batch.text
    assert verdicts["Listing 3, input sorted"].verdict == "biased"


def test_listing_3_with_its_three_slips_mended_is_the_first_order_form() -> None:
    """So that it is the slips that are judged, and not our restatement."""
    rng = np.random.default_rng(1)
    rewards, log_ratio = np.sort(rng.random(6)), 0.2 * rng.standard_normal(6)
    printed = p.listing_3(rewards[None], log_ratio[None], 4)
    assert printed.shape == (1, 1, 6)
    own = np.array([comb(i, 3) for i in range(6)]) / comb(6, 4)
    mended = printed[0, 0] - own * (rewards.sum() - rewards)  # the row back to a diagonal
    np.testing.assert_allclose(mended, p.first_order(rewards, log_ratio, 4), rtol=1e-12)


def test_exact_beats_first_order_beats_own_ratio_beats_none_near_the_policy() -> None:
    worst = {}
    for form in ("exact", "first-order", "own-ratio"):
        result = conformance(
            bestofk.objective("max@4", off_policy=form),
            4,
            6,
            off_policy=True,
            quiet=True,
        )
        worst[form] = max(case.bias for case in result.cases if case.spread == 0.2)
    assert worst["exact"] < 1e-9
    assert worst["exact"] < worst["first-order"] < worst["own-ratio"]


@pytest.mark.slow
def test_every_claim_of_unbiasedness_in_the_catalogue_is_confirmed(judged: Judged) -> None:
    for entry, result in (*judged["Ours, on policy"], *judged["Ours, off policy"]):
        chosen = entry.fn
        assert isinstance(chosen, bestofk.objectives.Objective)
        plain = chosen.off_policy == "exact" and not chosen.self_normalise
        if chosen.claim == "exact" and plain and chosen.truncate is None:
            assert result.verdict in ("exact", "other objective"), entry.name
        assert result.defects == (), entry.name


@pytest.mark.slow
def test_the_page_shows_the_tables_as_they_are_made(judged: Judged) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for title, entries in judged.items():
        assert f"### {title}\n\n{p.table(entries)}\n" in page, (
            f"research/conformance.md is stale under {title!r}: run python research/published.py"
        )


def test_full_verdicts_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    p.main(["next distinct", "grpo_passk"])
    printed = capsys.readouterr().out
    assert printed.count("judged ") == 4
    with pytest.raises(SystemExit, match="no estimator with 'foo'"):
        p.main(["foo"])
