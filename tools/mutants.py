"""Break the mathematics by hand, one way at a time, and see a test die.

    python tools/mutants.py [--write FILE] [--only WORDS]

Each row names a file of src/bestofk/objectives or procedures, what is broken, the text and its
replacement. The tree is copied first, so nothing here is ever changed in place. A mutant that
survives is a hole in the tests and fails the run. --only takes the mutants whose file or
description contains WORDS.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ON, OFF, PASSK, EST = "on_policy.py", "off_policy.py", "passk_training.py", "estimates.py"
SUMS, DIAG, BIN, IMPORTANCE = "symmetric_sums.py", "diagnostics.py", "binomials.py", "importance.py"
MAX, MAJ, SELECT, RETRY = "maximum.py", "majority.py", "selection.py", "retries.py"

# (file, what is broken, text, replacement, test file that should notice)
MUTANTS = [
    (BIN, "subset shares count one sample too many", "np.maximum(m - k, 0) / m", "np.maximum(m - k + 1, 0) / m", "estimates"),
    (BIN, "the curve's shares start one rank late", "m = np.arange(n, 1, -1)[:, None]", "m = np.arange(n - 1, 0, -1)[:, None]", "estimates"),
    (BIN, "order statistics count from the wrong end", "total[j - 1 : n - k + j]", "total[::-1][j - 1 : n - k + j]", "estimates"),
    (MAX, "max@k forgets the best", "return ordered[..., -1] - (ordered", "return ordered[..., -2] - (ordered", "estimates"),
    (MAX, "max@k uses the shares of k + 1", "subset_share(rewards.shape[-1], k)[1:-1]", "subset_share(rewards.shape[-1], k + 1)[1:-1]", "estimates"),
    (EST, "n < k is answered", "minimum=k,", "minimum=1,", "estimates"),
    (EST, "a reward at the threshold fails", "reaches(values, threshold)", "(values > threshold)", "estimates"),
    (EST, "the median of an even number is the upper one", "(float(j == (k - 1) // 2) + float(j == k // 2)) / 2", "float(j == k // 2)", "estimates"),
    (MAJ, "ties are won", "(ways / np.arange(1, len(ways) + 1)[:, None]).sum(axis=0)", "ways.sum(axis=0)", "estimates"),
    (MAJ, "a rival with as many votes is ignored", "most_votes[b] >= tally", "most_votes[b] > tally", "estimates"),
    (MAJ, "abstentions vote", "-1 if each is None or each != each else numbers", "numbers", "estimates"),
    (MAX, "canonical: k n/(n-k) becomes k", "scale=k * n / (n - k)", "scale=k", "on_policy"),
    (MAX, "canonical: sum convention", "scale=k * n / (n - k)", "scale=k / (n - k)", "on_policy"),
    (MAX, "canonical: not centred", "xp.mean(shortfall, axis=-1, keepdims=True) - shortfall, order", "-shortfall, order", "on_policy"),
    (MAX, "subset shares of k instead of k - 1", "subset_share(n - 1, k - 1)[: n - 1] * scale", "subset_share(n - 1, k)[: n - 1] * scale", "on_policy"),
    (MAX, "gaps counted from below", "return sums_above((ordered[..., 1:] - ordered[..., :-1]) * share)", "return sums_above(((ordered[..., 1:] - ordered[..., :-1]) * share)[..., ::-1])", "on_policy"),
    (MAX, "no baseline: factor k lost", "unsort(k * (ordered[..., -1:] - subset_shortfall(ordered, k)), order)", "unsort(ordered[..., -1:] - subset_shortfall(ordered, k), order)", "on_policy"),
    (MAX, "no baseline: weights left in rank order", "return unsort(k * (ordered[..., -1:] - subset_shortfall(ordered, k)), order)", "return k * (ordered[..., -1:] - subset_shortfall(ordered, k))", "on_policy"),
    (MAX, "no baseline: the shortfall is added", "k * (ordered[..., -1:] - subset_shortfall", "k * (ordered[..., -1:] + subset_shortfall", "on_policy"),
    (MAX, "loo: n/(n-1) lost", "q - n / (n - 1) * others", "q - others", "on_policy"),
    (MAX, "loo: the baseline sees its own sample", "- k * q) / (n - k)", "- 0 * q) / n", "on_policy"),
    (MAX, "loo: k counted twice", "- k * q) / (n - k)", "- 2 * k * q) / (n - k)", "on_policy"),
    (MAX, "loo-1: shares shifted by one", "subset_share(n - 1, k - 1)[1:], ordered", "subset_share(n - 1, k - 1)[:-1], ordered", "on_policy"),
    (MAX, "loo-1: factor k lost", "unsort(k * xp.concat([xp.zeros_like(lead", "unsort(xp.concat([xp.zeros_like(lead", "on_policy"),
    (MAX, "loo-1: k = 1 is not RLOO", "    if k == 1:\n        return max_canonical(rewards, 1)\n", "", "on_policy"),
    (ON, "z-score: sample standard deviation", "xp.sqrt(xp.mean(centred * centred, axis=-1, keepdims=True))", "xp.sqrt(xp.sum(centred * centred, axis=-1, keepdims=True) / (values.shape[-1] - 1))", "on_policy"),
    (ON, "z-score: not shifted, so equal rewards give noise", "shifted = values - xp.max(values, axis=-1, keepdims=True)", "shifted = values", "on_policy"),
    (ON, "z-score of the shortfall, not of q", "z_score(-subset_shortfall(ordered, k))", "z_score(subset_shortfall(ordered, k))", "on_policy"),
    (BIN, "L-statistic: shares of n samples, not of the n - 1 others", "order_statistic_weights(n - 1, k, coefficients) * np.stack", "order_statistic_weights(n, k, coefficients)[1:] * np.stack", "on_policy"),
    (BIN, "L-statistic: a gap gives below what it gives above", "np.stack([j, n - j])", "np.stack([n - j, j])", "on_policy"),
    (ON, "L-statistic: gaps above a sample left out", "unsort(below - sums_above(gaps * shares[1]), order)", "unsort(below, order)", "on_policy"),
    (ON, "RLOO: n/(n-1) lost", "dr_grpo(rewards) * (n / (n - 1))", "dr_grpo(rewards)", "on_policy"),
    (ON, "Dr. GRPO: baseline doubled", "return shifted - xp.mean(shifted, axis=-1, keepdims=True)\n\n\ndef grpo", "return shifted - 2 * xp.mean(shifted, axis=-1, keepdims=True)\n\n\ndef grpo", "on_policy"),
    (ON, "BoN-max mean: every sample is paid", "xp.where(best, dr_grpo(rewards), xp.zeros_like(rewards))", "dr_grpo(rewards)", "on_policy"),
    (ON, "BoN-max mean: pays the raw reward", "xp.where(best, dr_grpo(rewards)", "xp.where(best, rewards", "on_policy"),
    (ON, "BoN-max second: lead over the third", "ordered[..., -2:-1]\n", "ordered[..., -3:-2]\n", "on_policy"),
    (ON, "BoN-max second: losers keep their raw reward", "rest = xp.zeros_like(ordered[..., :-1])", "rest = ordered[..., :-1]", "on_policy"),
    (ON, "MaxRL: divides by the spread", "_divide(dr_grpo(rewards), xp.mean(rewards, axis=-1, keepdims=True))", "_divide(dr_grpo(rewards), xp.mean(rewards, axis=-1, keepdims=True) ** 0.5)", "on_policy"),
    (ON, "MaxRL: not centred", "_divide(dr_grpo(rewards), xp.mean", "_divide(rewards, xp.mean", "on_policy"),
    (BIN, "TailRL: survivors off by one", "np.arange(n - 1, 0, -1) / n", "np.arange(n, 1, -1) / n", "on_policy"),
    (ON, "TailRL: not centred", "unsort(dr_grpo(climbed), order)", "unsort(climbed, order)", "on_policy"),
    (BIN, "TailRL: n lost", "np.arange(n - 1, 0, -1) / n", "np.arange(n - 1, 0, -1) / 1.0", "on_policy"),
    (ON, "RS-GRPO: 1/β lost", "/ (beta * (1.0 + average))", "/ (1.0 + average)", "on_policy"),
    (ON, "RS-GRPO: not centred", "return (tilted - average) /", "return tilted /", "on_policy"),
    (ON, "RS-GRPO: overflows", "xp.expm1(beta * (rewards - xp.max(rewards, axis=-1, keepdims=True)))", "xp.expm1(beta * rewards)", "on_policy"),
    (PASSK, "analytical: variance of single rewards", "best_share(rewards.shape[-1], k)", "best_share(rewards.shape[-1], 1)", "passk_training"),
    (PASSK, "analytical: variance instead of deviation", "sigma = xp.sqrt(xp.sum(share * spread, axis=-1, keepdims=True))", "sigma = xp.sum(share * spread, axis=-1, keepdims=True)", "passk_training"),
    (PASSK, "analytical: not centred", "_divide(estimate - shortfall, sigma)", "_divide(-shortfall, sigma)", "passk_training"),
    (PASSK, "exceeding: ln(N + 1.5)", "some + 0.5", "some + 1.5", "passk_training"),
    (PASSK, "exceeding: 4 lost", "(4.0 / (10.0", "(1.0 / (10.0", "passk_training"),
    (PASSK, "combination: weights swapped", "accuracy * analytical(rewards, k) + (1.0 - accuracy)", "(1.0 - accuracy) * analytical(rewards, k) + accuracy", "passk_training"),
    (PASSK, "adaptive: sides swapped", "entropy[..., None] > threshold", "entropy[..., None] <= threshold", "passk_training"),
    (PASSK, "adaptive: ties count as high", "entropy[..., None] > threshold", "entropy[..., None] >= threshold", "passk_training"),
    (PASSK, "drop easy: drops the hard ones", "> accuracy_threshold", "< accuracy_threshold", "passk_training"),
    (PASSK, "full sampling: the rest is paid too", "rest = xp.zeros_like(rewards[..., sets * k :])", "rest = rewards[..., sets * k :]", "passk_training"),
    (PASSK, "full sampling: sets may overlap by value order", "shuffled = by_order(rewards, order)[..., : sets * k]", "shuffled = rewards[..., : sets * k]", "passk_training"),
    (PASSK, "bootstrap: mean instead of sum", "xp.sum(mask * z_score(best)[..., None], axis=-2)", "xp.mean(mask * z_score(best)[..., None], axis=-2)", "passk_training"),
    (PASSK, "bootstrap: sets with the worst", "best = xp.max(xp.where(mask > 0", "best = -xp.max(xp.where(mask > 0", "passk_training"),
    (SUMS, "canonical: the mean of the others not normalised", "seen, share, xp.ones_like(share)", "seen, xp.ones_like(share), xp.ones_like(share)", "off_policy"),
    (SUMS, "canonical: the product of the others' ratios lost", "with_i[:, 0] - with_i[:, 1] * others", "with_i[:, 0] - others", "off_policy"),
    (SUMS, "canonical: rewards not counted from the best", "below = rewards - rewards[-1:]\n    both", "below = rewards\n    both", "off_policy"),
    (SUMS, "canonical: underflow is not noticed", "if check and bool(xp.any(share < LEAST_CHANCE)):", "if False:", "off_policy"),
    (SUMS, "canonical: sets inside the prefix forgotten", "xp.sum(before * ends, axis=0) + best_before * none_after", "xp.sum(before * ends, axis=0)", "off_policy"),
    (SUMS, "none: own reward closed with the whole suffix", "(reward * none_after)[None]", "(reward * xp.ones_like(none_after))[None]", "off_policy"),
    (IMPORTANCE, "none: factor k lost", "+ math.log(k) - log_binomial(n - 1, k - 1)", "- log_binomial(n - 1, k - 1)", "off_policy"),
    (IMPORTANCE, "none: own ratio lost", "scaled(tosses.heads * bracket, log_scale, check=check)", "scaled(bracket, log_scale, check=check)", "off_policy"),
    (SUMS, "loo-1: baseline of k others", "start = (_no_heads(tosses, k), zero[0])", "start = (_no_heads(tosses, k + 1), zero[0])", "off_policy"),
    (SUMS, "loo-1: later samples forgotten", "stacked(leads)], axis=0) * none_after", "stacked(leads)], axis=0)", "off_policy"),
    (SUMS, "loo-1: sets with the sample before it counted", "lead = tails * lead +", "lead = lead +", "off_policy"),
    (SUMS, "loo-1: lead over nothing", "gaps = rewards[1:] - rewards[:-1]", "gaps = rewards[1:]", "off_policy"),
    (IMPORTANCE, "self-normalised: denominator not differentiated", "with_i[:, 0] - best / share * with_i[:, 1]", "with_i[:, 0]", "off_policy"),
    (IMPORTANCE, "self-normalised: 1 - k/n of the on-policy weight", "n * n / (n - k) * tosses.heads", "n * tosses.heads", "off_policy"),
    (OFF, "value: normalised by C(n-1, k-1)", "log_scale = tosses.log_scale - log_binomial(n, k)", "log_scale = tosses.log_scale - log_binomial(n - 1, k - 1)", "off_policy"),
    (SUMS, "value: k log λ lost", "k * log_tilt + xp.sum(soft, axis=0)", "xp.sum(soft, axis=0)", "off_policy"),
    (SUMS, "overflow is not noticed", "if largest > LARGEST_LOG:", "if False:", "off_policy"),
    (OFF, "first order: pair term lost", "shared = delta * sums_above((ordered * (pair - triple))[..., 1:])", "shared = delta * sums_above((ordered * pair)[..., 1:])", "off_policy"),
    (OFF, "first order: prefix sum includes the sample", "before = cumulative_sum(delta) - delta", "before = cumulative_sum(delta)", "off_policy"),
    (OFF, "first order: baseline without the ratio", "result - unsort(share, order) * worth", "result - worth", "off_policy"),
    (OFF, "first order: baseline without the others' ratios", "(1.0 + delta) * (1.0 + (k - 1) * mean_of_others)", "1.0 + delta", "off_policy"),
    ("terms.py", "own ratio: ratio squared", "scaled(on_policy, ratios, check=check)", "scaled(on_policy, 2 * ratios, check=check)", "off_policy"),
    ("terms.py", "own ratio: ratio lost", "return scaled(on_policy, ratios, check=check)", "return on_policy", "off_policy"),
    (OFF, "truncation from below", "xp.where(excess > 0, excess,", "xp.where(excess < 0, excess,", "trust_region"),
    (OFF, "truncation stops the gradient of cut samples", "return log_ratio - without_gradient(xp.where(excess > 0, excess, xp.zeros_like(excess)))", "return log_ratio - xp.where(excess > 0, excess, xp.zeros_like(excess))", "trust_region"),
    (OFF, "the mask stops pushes inward too", "(advantages > 0) & (log_ratio > high)", "(log_ratio > high)", "trust_region"),
    (OFF, "the mask has one side", "~(up | down)", "~up", "trust_region"),
    (OFF, "low and high swapped", "return low, high\n\n\ndef clipped", "return high, low\n\n\ndef clipped", "trust_region"),
    ("objective.py", "the mask looks at truncated ratios", "off.inside_region(result, here.log_ratio, *self", "off.inside_region(result, off.truncated(here.log_ratio, self.truncate), *self", "trust_region"),
    (DIAG, "divergence without the log-ratio", "xp.expm1(logs) - logs", "xp.expm1(logs)", "trust_region"),
    (DIAG, "effective share with D instead of 2D", "math.exp(-2 * divergence", "math.exp(-divergence", "trust_region"),
    (OFF, "clipped: the own ratio lost", "xp.where(inside, values * xp.exp(logs), xp.zeros_like(values))", "xp.where(inside, values, xp.zeros_like(values))", "trust_region"),
    (OFF, "clipped: the penalty pushes away", "result + kl * xp.expm1(-reference)", "result - kl * xp.expm1(-reference)", "trust_region"),
    (PASSK, "bootstrap: always n sets", "sets or n, n), rewards)", "n, n), rewards)", "passk_training"),
    ("grouping.py", "entropies in the order of the buckets", "return xp.take(by_group, constant(bucket.groups, by_group), axis=0)", "return by_group[: len(bucket.groups)]", "inputs"),
    ("grouping.py", "group ids of two kinds are merged", "if len(kinds) > 1:", "if False:", "inputs"),
    ("grouping.py", "dead samples are counted in n", "counts = np.bincount(ids[alive], minlength=count)", "counts = np.bincount(ids, minlength=count)", "groups"),
    ("grouping.py", "rows are grouped by position", "rows = rows[np.argsort(ids[rows], kind=\"stable\")]", "rows = rows", "groups"),
    ("grouping.py", "small groups are dropped in silence", "warnings.warn(f\"{message}; left out\", DroppedGroups, stacklevel=4)", "pass", "groups"),
    ("grouping.py", "a hopeless batch is dropped", "if count and sizes.max() < minimum:", "if False:", "groups"),
    ("grammar.py", "switches come a stage late", "starts = [0.0] + [_share(piece, text) for piece in pieces[1::2]]", "starts = [0.0] + [_share(piece, text) ** 0.5 for piece in pieces[1::2]]", "grammar"),
    ("grammar.py", "annealing skips the last k", "ks = range(first, last + step, step)", "ks = range(first, last, step)", "grammar"),
    ("grammar.py", "mixtures are sums, not means", "[1.0 / len(terms)] * len(terms)", "[1.0] * len(terms)", "on_policy"),
    ("inputs.py", "ratios given to a normalised objective are ignored", "if term.entry.baseline is None:", "if False:", "off_policy"),
    (SELECT, "select: of equal scores each wins as if alone", "(values - means) * (wins - own)", "(values - means) * wins", "procedures"),
    (SELECT, "select: not centred", "(xp.mean(shortfall, axis=-1, keepdims=True) - shortfall) * (k * n / (n - k))", "-shortfall * (k * n / (n - k))", "procedures"),
    (RETRY, "retry: the first draw is free", "for j in range(1, k if price else 1)", "for j in range(2, k if price else 1)", "procedures"),
    (RETRY, "retry: all sets weigh as those of k", "exact(values, ratios(size), size", "exact(values, ratios(k), size", "procedures"),
    (RETRY, "retry: draws after a pass cost tokens", "spent if size == m else spent * fails", "spent", "procedures"),
]  # fmt: skip


def prepare(folder: Path) -> None:
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)


def dies(folder: Path, test: str) -> str | None:
    """The first test that fails, or None if the mutant survives."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider",
               "--no-header", "-m", "not gpu", f"tests/objectives/test_{test}.py"]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        if line.startswith(("FAILED", "ERROR")):
            return line.split("::")[-1].split(" ")[0].split("[")[0]
    return None


def main() -> int:
    rows, survivors = [], 0
    words = sys.argv[sys.argv.index("--only") + 1] if "--only" in sys.argv else ""
    chosen = [mutant for mutant in MUTANTS if words in f"{mutant[0]}: {mutant[1]}"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        for file, what, old, new, test in chosen:
            rooms = [folder / "src/bestofk" / room for room in ("procedures", "objectives")]
            (path,) = (room / file for room in rooms if (room / file).exists())
            original = path.read_text()
            if old not in original:
                print(f"STALE     {file}: {what}: text not found: {old}")
                survivors += 1
                continue
            path.write_text(original.replace(old, new))
            killer = dies(folder, test)
            path.write_text(original)
            survivors += killer is None
            rows.append((file, what, killer))
            print(
                f"{'killed' if killer else 'SURVIVED':<9} {file}: {what}  {killer or ''}",
                flush=True,
            )
    print(f"\n{len(chosen) - survivors} of {len(chosen)} mutants killed")
    if "--write" in sys.argv:
        target = Path(sys.argv[sys.argv.index("--write") + 1])
        lines = ["| file | what is broken | test that dies |", "|---|---|---|"]
        lines += [f"| `{file}` | {what} | `{killer}` |" for file, what, killer in rows]
        target.write_text("\n".join(lines) + "\n")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
