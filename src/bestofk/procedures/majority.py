"""maj@k: k samples vote with their answers, and the most frequent answer is used.

f is the mean reward of the samples that gave the winning answer. Silent samples count among the k
and cannot win; a set in which nobody votes is worth 0. A tie is shared evenly (for independent
draws the same as using the answer seen first); with `ties-wrong` it is worth 0, with `ties-count`
its best answer. `weighted`: a sample has as many votes as its score says, a whole number. With
D_a(u, t) the chance of u heads with t votes among the coins of answer a (`symmetric_sums`: on
policy all ratios are 1), and r_a what they pay,

    F = Σ_v [z^k] D_silent Σ_a r_a T_a Π_{b≠a} (L_b + y T_b),
    L_b = Σ_u z^u Σ_{t<v} D_b(u, t),    T_b = Σ_u z^u D_b(u, v)

is what all k-sets are worth, each times its chance: v votes win. The tie rule is a measure of y:
∫_0^1 y^t dy = 1/(1+t) shares a tie of 1+t answers (Gauss-Legendre nodes make it exact), y = 0 makes
it worth 0, and y = 1 for answers that pay less, 0 for the others, uses the best. F is linear in
each D_b, so one pass forward over the answers and one back give ∂F/∂D_b(u, t), and with them the
sums over sets with a sample and without it.

The gradient dies on both sides of a tie, exponentially in k, and behind a rival it raises other
wrong answers: for a higher vote GRPO is as good or better. It is an exact estimator, and it keeps
answers diverse.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, Literal, TypeAlias

import numpy as np
from array_api_compat import array_namespace, device

from .arrays import Array, as_numpy
from .binomials import binomial, by_share
from .importance import weigh
from .procedure import Fixed, Procedure, by_baseline
from .symmetric_sums import toss, with_and_without

Ties: TypeAlias = Literal["shared", "wrong", "count"]
MOST_VOTES = 1000
"""Of one sample: work and memory grow with it."""


def numbered(answers: np.ndarray) -> np.ndarray:
    """Answers (...,) as whole numbers, equal for equal ones; None and NaN, which do not vote, -1.

    >>> numbered(np.array(["4", None, "5", "4"], dtype=object))
    array([ 0, -1,  1,  0])
    """
    numbers: dict[Any, int] = {}
    try:
        labels = [
            -1 if each is None or each != each else numbers.setdefault(each, len(numbers))
            for each in answers.reshape(-1).tolist()
        ]
    except TypeError as error:
        raise ValueError(
            f"answers must be texts, numbers or None ({error}): turn others into texts"
        ) from None
    return np.array(labels, dtype=np.int64).reshape(answers.shape)


def whole_votes(scores: np.ndarray) -> np.ndarray:
    """Scores as numbers of votes."""
    odd = scores[~((scores >= 0) & (scores <= MOST_VOTES) & (scores == np.floor(scores)))]
    if odd.size:
        raise ValueError(
            f"a weighted vote takes scores that are whole numbers from 0 to {MOST_VOTES}, got "
            f"{odd.flat[0]:g}: round them to a few levels (0 does not vote)"
        )
    return scores.astype(np.int64)


def votes_by_k(
    labels: np.ndarray,
    marks: np.ndarray,
    k_max: int,
    share: float,
    *,
    ties: Ties = "shared",
    votes: np.ndarray | None = None,
) -> np.ndarray:
    """Mean over all k-subsets of what the leading answer is worth, for k = 1..k_max.

    The counts of the answers in a random k-subset are binomials conditioned on their sum, whatever
    the share of heads of their coins: for each answer and number of votes that wins, a product of
    polynomials, one per rival.

    Args:
        labels: (n,) whole numbers ≥ 0, equal for equal answers; -1 does not vote.
        marks: (n,) what the sample is worth.
        share: of heads. k/n is precise at that k for every n; 1/2 at every k for n ≤ EXACT_SAMPLES.
        ties: what a tie is worth.
        votes: (n,) how many a sample has, at least 1; by default one.

    >>> votes_by_k(np.array([0, 0, 1]), np.array([1.0, 1.0, 0.0]), 3, 0.5).round(4)
    array([0.6667, 0.6667, 1.    ])
    """
    n, voting = len(labels), labels >= 0
    extra = np.zeros(n, np.int64) if votes is None else votes - 1
    means = means_of_answers(marks, labels)
    _, first = np.unique(labels[voting], return_index=True)
    first = np.flatnonzero(voting)[first]
    first = first[np.argsort(-means[first], kind="stable")]  # the best first, for ties-count
    members = [np.flatnonzero(labels == labels[at]) for at in first]
    coins = [_chances(extra[at], marks[at], share, k_max) for at in members]
    most_votes = [len(at) + int(extra[at].sum()) for at in members]
    tallies = _tallies([chances for chances, _ in coins])
    split = [_split(chances, tallies) for chances, _ in coins]
    total = np.zeros(k_max + 1)
    for answer, (_, paid) in enumerate(coins):
        for at, (tally, own) in enumerate(zip(tallies, _split(paid, tallies)[1])):
            if not own.any():
                continue
            size = k_max + 1 - int(np.flatnonzero(own)[0])
            able = [b for b in range(len(coins)) if b != answer and most_votes[b] >= tally]
            beaten = n - len(members[answer]) - sum(len(members[b]) for b in able)
            ways = _multiplied(np.ones(1), binomial(beaten, share), size)[None]
            for b in able:
                fewer, level = split[b][0][at], split[b][1][at]
                if ties == "count" and b > answer:
                    fewer = fewer + level
                grown = np.zeros((len(ways) + (ties == "shared"), size))
                for tied, row in enumerate(ways):  # so far: ties, samples
                    grown[tied] += _multiplied(row, fewer, size)
                    if ties == "shared":
                        grown[tied + 1] += _multiplied(row, level, size)
                ways = grown if grown[-1].any() else grown[:-1]
            shares = (ways / np.arange(1, len(ways) + 1)[:, None]).sum(axis=0)
            total += _multiplied(shares, own, k_max + 1)
    everyone = binomial(n, share)[: k_max + 1]
    means = np.divide(total, everyone, out=np.zeros(k_max + 1), where=everyone > 0)
    return np.clip(means[1:], min(0.0, marks.min(initial=0.0)), max(0.0, marks.max(initial=0.0)))


def _multiplied(row: np.ndarray, polynomial: np.ndarray, size: int) -> np.ndarray:
    """The product of two polynomials, its first coefficients."""
    result, filled = np.zeros(size), polynomial.nonzero()[0]
    if not filled.size or filled[0] >= size:
        return result
    first, last = filled[0], filled[-1]
    if first == last:
        result[first : first + len(row)] = polynomial[first] * row[: size - first]
        return result
    part = np.convolve(row, polynomial[first : last + 1])[: size - first]
    result[first : first + len(part)] = part
    return result


def _chances(
    extra: np.ndarray, marks: np.ndarray, share: float, k_max: int
) -> tuple[np.ndarray, np.ndarray]:
    """Chances of u heads with u + x votes among an answer's coins, (u, x); the same times what
    those samples are worth on average.

    Args:
        extra: votes of each sample beyond one.
    """
    if not extra.any():
        chances = binomial(len(extra), share)[: k_max + 1, None]
        return chances, chances * marks.mean()
    heads = np.full(len(extra), share)
    chances, paid = _coins(heads, 1.0 - heads, marks, extra, min(k_max, len(extra)))[0]
    return chances, paid / np.maximum(np.arange(len(paid)), 1)[:, None]


def _tallies(coins: list[np.ndarray]) -> np.ndarray:
    """The numbers of votes that some answer can have."""
    tallies = {int(u + x) for each in coins for u, x in np.argwhere(each) if u > 0}
    return np.array(sorted(tallies), dtype=np.int64)


def _split(coins: np.ndarray, tally: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Chances by heads of fewer votes than the tally, and of as many: (..., u)."""
    u, columns = np.arange(len(coins)), coins.shape[1]
    room = np.asarray(tally)[..., None] - u
    sums = np.concatenate([np.zeros((len(coins), 1)), np.cumsum(coins, axis=1)], axis=1)
    level = np.where((room >= 0) & (room < columns), coins[u, np.clip(room, 0, columns - 1)], 0.0)
    return sums[u, np.clip(room, 0, columns)], level


def vote_by_k(
    rewards: Array,
    k_max: int,
    answers: np.ndarray,
    *,
    ties: Ties = "shared",
    scores: Array | None = None,
) -> np.ndarray:
    """U_k for k = 1..k_max: (g, k_max)."""
    host, (answers, votes) = as_numpy(rewards), ballots(answers, scores)
    rows = []
    for row, labels, own in zip(host, answers, votes):
        vote = partial(votes_by_k, labels, row, ties=ties, votes=own)
        rows.append(by_share(len(row), k_max, vote))
    return np.array(rows)


def ballots(answers: np.ndarray, scores: Array | None) -> tuple[np.ndarray, np.ndarray]:
    """Answers, silent where a sample has no votes, and the votes of each sample."""
    if scores is None:
        return answers, np.ones_like(answers)
    votes = whole_votes(as_numpy(scores))
    answers = np.where(votes > 0, answers, -1)
    return answers, np.where(answers >= 0, votes, 1)


def means_of_answers(rewards: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The mean reward of each sample's answer."""
    places = labels + 1
    sums, counts = np.bincount(places, rewards), np.bincount(places)
    return (sums / np.maximum(counts, 1))[places]


def _coins(
    heads: np.ndarray, tails: np.ndarray, rewards: np.ndarray, extra: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Chances of u ≤ k heads with u + x votes, and the same times the sum of their rewards: among
    all coins (2, u, x), and among all but each (c, 2, u, x)."""
    rows = np.zeros((len(heads) + 1, 2, k + 1, int(np.sort(extra)[-k:].sum()) + 1))
    rows[:, 0, 0, 0] = 1.0
    for j, (head, tail, reward, more) in enumerate(zip(heads, tails, rewards, extra)):
        tossed = tail * rows
        moved = rows[:, :, :-1, : rows.shape[-1] - more]
        tossed[:, :, 1:, more:] += head * moved
        tossed[:, 1, 1:, more:] += head * reward * moved[:, 0]
        tossed[j] = rows[j]
        rows = tossed
    return rows[-1], rows[:-1]


def _nodes(tallies: np.ndarray, ties: Ties, k: int, most_votes: int) -> tuple[np.ndarray, ...]:
    """(votes to win, y, weight) of each term of the sum; y of `ties-count` depends on the order."""
    if ties != "shared":
        return tallies, np.zeros(len(tallies)), np.ones(len(tallies))
    parts = []
    for votes in tallies:
        rivals = k // -(-int(votes) // most_votes) - 1  # that can tie: the degree in y
        points, weight = _gauss_legendre(max(rivals, 0) // 2 + 1)
        parts.append(np.stack([np.full(len(weight), votes), (points + 1) / 2, weight / 2]))
    terms = np.concatenate(parts, axis=1) if parts else np.zeros((3, 0))
    return terms[0].astype(np.int64), terms[1], terms[2]


@lru_cache(256)
def _gauss_legendre(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    return np.polynomial.legendre.leggauss(nodes)


LOST, PAID, ONE, TIED = range(4)
"""Of the sets counted so far: no answer has the votes that win; one has, times what it pays; one
has; several have, times what that is worth."""


def _steps(ties: Ties, y: np.ndarray, tie_pays: float) -> np.ndarray:
    """(s, from, to): where sets go when one more answer has the votes that win, its pay aside."""
    step = np.zeros((len(y), 4, 4))
    if ties == "shared":
        step[:, LOST, LOST] = step[:, PAID, PAID] = y
        return step[:, :2, :2]
    if ties == "count":
        step[:, PAID, PAID] = 1.0
        return step[:, :2, :2]
    step[:, LOST, ONE] = step[:, TIED, TIED] = 1.0
    step[:, ONE, TIED] = tie_pays
    return step


def _shifts(values: np.ndarray) -> np.ndarray:
    """(s, k + 1) → (s, k + 1, k + 1): the matrices that multiply polynomials by these."""
    size = values.shape[-1]
    lag = np.arange(size)[:, None] - np.arange(size)
    return np.where(lag >= 0, values[:, np.maximum(lag, 0)], 0.0)


def _with_and_without(
    rewards: np.ndarray,
    labels: np.ndarray,
    votes: np.ndarray,
    heads: np.ndarray,
    tails: np.ndarray,
    k: int,
    ties: Ties,
    *,
    is_centred: bool,
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Σ over sets of chance × (worth - reference), as `symmetric_sums.with_and_without`, and the
    reference: the reward of the answer with most votes, so that no signal gives exact zeros; or,
    where nothing is to be centred, 0, so that nothing cancels."""
    means = means_of_answers(rewards, labels)
    names = np.unique(labels[labels >= 0])
    first = [int((labels == each).argmax()) for each in names]
    names = names[np.argsort(-means[first], kind="stable")]  # the best first, for ties-count
    classes = [np.flatnonzero(labels == each) for each in (-1, *names)]
    leaders = max(classes[1:], key=lambda each: votes[each].sum(), default=classes[0][:0])
    reference = float(means[leaders[0]]) if leaders.size and is_centred else 0.0
    coins = [
        _coins(heads[at], tails[at], rewards[at] - reference, votes[at] - 1, k) for at in classes
    ]
    tallies = _tallies([each[0][0] for each in coins[1:]])
    win, y, weight = _nodes(tallies, ties, k, int(votes.max()))
    # one more term: nobody votes, which is worth 0
    win, y, weight = (np.append(each, end) for each, end in ((win, 1), (y, 0.0), (weight, 1.0)))
    is_won = (np.arange(len(win)) < len(win) - 1)[:, None]
    step, size = _steps(ties, y, -reference), np.maximum(np.arange(k + 1), 1)[:, None]
    state = np.zeros((len(win), k + 1, step.shape[-1]))
    state[:, 0, LOST] = 1.0
    factors, before = [], []
    for number, ((chances, paid), _) in enumerate(coins):
        fewer, level = _split(chances, win)
        pays = _split(paid / size, win)[1]
        if number == 0:  # the silent: any number of them
            every = chances.sum(axis=1)
            fewer, level, pays = every * is_won, level * 0.0, -reference * every * ~is_won
        else:
            level, pays = level * is_won, pays * is_won
        factors.append(tuple(map(_shifts, (fewer, level, pays))))
        before.append(state)
        state = factors[-1][0] @ state + factors[-1][1] @ (state @ step)
        state[..., PAID] += (factors[-1][2] @ before[-1][..., LOST, None])[..., 0]
    ends = [PAID, TIED][: step.shape[-1] // 2]
    total = float(weight @ state[:, k, ends].sum(axis=-1))
    after = np.zeros_like(state)
    after[:, k, ends] = weight[:, None]
    with_i, without_i = np.zeros(len(labels)), np.zeros(len(labels))
    for number in reversed(range(len(classes))):
        (chances, _), others = coins[number]
        at, (fewer, level, pays), state = classes[number], factors[number], before[number]
        slopes = [
            np.einsum("sijf,sif->sj", _shifts_of_all(each), after) for each in (state, state @ step)
        ]
        slopes.append(np.einsum("sij,si->sj", _shifts(state[..., LOST]), after[..., PAID]))
        if number == 0:
            in_chance = (slopes[0] * is_won - reference * slopes[2] * ~is_won).sum(axis=0)[:, None]
            in_chance = np.broadcast_to(in_chance, chances.shape)
            in_paid = np.zeros(chances.shape)
        else:
            in_chance = _back_to_coins(slopes[0], slopes[1] * is_won, win, chances.shape)
            in_paid = _back_to_coins(0.0 * slopes[0], slopes[2] * is_won, win, chances.shape) / size
        for place, (own, paid) in zip(at, others):
            more = int(votes[place]) - 1
            without_i[place] = (in_chance * own + in_paid * paid).sum()
            moved = slice(None, -1), slice(None, chances.shape[1] - more)
            paid = paid[moved] + (rewards[place] - reference) * own[moved]
            with_i[place] = (in_chance[1:, more:] * own[moved]).sum()
            with_i[place] += (in_paid[1:, more:] * paid).sum()
        back = np.swapaxes(level, 1, 2) @ after @ np.swapaxes(step, 1, 2)
        back = np.swapaxes(fewer, 1, 2) @ after + back
        back[..., LOST] += (np.swapaxes(pays, 1, 2) @ after[..., PAID, None])[..., 0]
        after = back
    return with_i, without_i, total, reference


def _shifts_of_all(states: np.ndarray) -> np.ndarray:
    """(s, k + 1, f) → (s, k + 1, k + 1, f)."""
    return np.stack([_shifts(states[..., f]) for f in range(states.shape[-1])], axis=-1)


def _back_to_coins(
    in_fewer: np.ndarray, in_level: np.ndarray, win: np.ndarray, shape: tuple[int, ...]
) -> np.ndarray:
    """Derivatives in an answer's chances (u, x), from those in `_split` of them."""
    u, columns = np.arange(shape[0]), shape[1]
    room = win[:, None] - u
    below, level = np.zeros((shape[0], columns + 1)), np.zeros(shape)
    rows = np.broadcast_to(u, room.shape)
    np.add.at(below, (rows, np.clip(room, 0, columns)), in_fewer)
    fits = (room >= 0) & (room < columns)
    np.add.at(level, (rows[fits], room[fits]), in_level[fits])
    return level + np.cumsum(below[:, :0:-1], axis=1)[:, ::-1]


def weights(
    rewards: Array,
    k: int,
    answers: np.ndarray,
    *,
    scores: Array | None = None,
    log_ratio: Array | None = None,
    ties: Ties = "shared",
    baseline: str = "canonical",
    self_normalise: bool = False,
    check: bool = True,
) -> Array:
    """Advantages (g, n), on policy or with log-ratios, as `importance.exact` has them.

    Computed group by group on the host, in NumPy. Where samples of one answer have different
    rewards, all is exact but `ties-count`, which orders answers by their mean in the group.
    """
    if not rewards.shape[0]:
        return rewards
    host, (answers, votes) = as_numpy(rewards), ballots(answers, scores)
    logs = np.zeros(host.shape) if log_ratio is None else as_numpy(log_ratio)
    tosses = toss(logs.T, k)

    def sums(size: int) -> tuple[np.ndarray, ...]:
        by_group = [
            _with_and_without(
                host[row],
                answers[row],
                votes[row],
                heads,
                tails,
                size,
                ties,
                is_centred=baseline != "none",
            )
            for row, (heads, tails) in enumerate(zip(tosses.heads.T, tosses.tails.T))
        ]
        return tuple(np.stack(each, axis=-1) for each in zip(*by_group))

    ones = with_and_without(np.ones(logs.T.shape), tosses, k)
    result = weigh(sums, ones, tosses, k, baseline=baseline, self_normalise=self_normalise).T
    xp = array_namespace(rewards)
    return xp.asarray(result, device=device(rewards))


def _vote(rule: str) -> Procedure:
    ties: Ties = "wrong" if "wrong" in rule else "count" if "count" in rule else "shared"
    weighted = "weighted" in rule
    said = {"shared": "", "wrong": ", a tie being wrong", "count": ", a tie counting as its best"}
    return Procedure(
        name="maj",
        rule=rule,
        meaning="the expected reward of the most frequent answer among k samples"
        + ", each with as many votes as its score says" * weighted
        + said[ties],
        curve=Fixed(vote_by_k, {"ties": ties}),
        weights=by_baseline(weights, "canonical", "loo-1", "none", ties=ties),
        off_policy=Fixed(weights, {"ties": ties}),
        needs=("answers", "scores") if weighted else ("answers",),
    )


MAJ, *VOTES = map(
    _vote, ("", "ties-wrong", "ties-count", "weighted", "weighted:ties-wrong",
            "weighted:ties-count"),
)  # fmt: skip
