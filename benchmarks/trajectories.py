"""What a step spends on handing sampled tokens over: arrays against tuples of Python objects.

    python benchmarks/trajectories.py [--tokens 1000000] [--length 500]

Both sides take a sampler's matrices and end with what the learner's batch, the gap to the sampler
and the entropy need. Tuples are what a completion held before it was a `Trajectory`.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from _measure import against, machine, milliseconds, table
from bestofk.types import Trajectory


def with_tuples(tokens: np.ndarray, log_probs: np.ndarray) -> list[tuple[tuple, tuple]]:
    rows = [(tuple(a), tuple(b)) for a, b in zip(tokens.tolist(), log_probs.tolist())]
    np.concatenate([np.array(ids, dtype=np.int64) for ids, _ in rows])
    np.concatenate([np.array(values, dtype=np.float32) for _, values in rows])
    sum(sum(values) for _, values in rows)
    return rows


def with_arrays(tokens: np.ndarray, log_probs: np.ndarray) -> list[Trajectory]:
    rows = [Trajectory(a, log_probs=b) for a, b in zip(tokens, log_probs)]
    np.concatenate([each.tokens[np.flatnonzero(each.own)] for each in rows], dtype=np.int64)
    np.concatenate([each.own_log_probs for each in rows])
    sum(each.log_prob for each in rows)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--length", type=int, default=500)
    asked = parser.parse_args()
    rng, shape = np.random.default_rng(0), (asked.tokens // asked.length, asked.length)
    batch = rng.integers(0, 150_000, shape, dtype=np.int32), -rng.random(shape, dtype=np.float32)
    new, old = against(lambda: with_arrays(*batch), lambda: with_tuples(*batch), rounds=5)
    ids, values = with_tuples(batch[0][:1], batch[1][:1])[0]
    (row,) = with_arrays(batch[0][:1], batch[1][:1])
    objects = [ids, values, *ids, *values]
    arrays = [row, row.tokens, row.own, row.log_probs]
    held = [sum(map(sys.getsizeof, each)) / asked.length for each in (objects, arrays)]
    scale = 1e6 / (shape[0] * shape[1])
    rows = [("", "per million tokens", "bytes a token")]
    rows += [
        (name, milliseconds(took * scale), f"{size:.1f}")
        for name, took, size in zip(("tuples", "arrays"), (old, new), held)
    ]
    table(f"Sampled tokens from sampler to learner ({machine()})", rows)
    print(f"\narrays: {old / new:.0f} times faster")


if __name__ == "__main__":
    main()
