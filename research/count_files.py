"""Files of counts: one Parquet file per study, one row per evaluation, compressed with zstd.

A record is a dict with arm, seed, step, samples, seconds, entropy, distinct_wrong; `best`: the
value by which validation picked the run's checkpoint, in newer studies; `shares`: the effective
share of the samples in each training step so far, where they were older than the policy; and
`counts`: for each problem the number of successes, or pairs of a reward and how often it came,
ascending.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

PLAIN = {
    "arm": pa.string(),
    "seed": pa.int32(),
    "step": pa.int32(),
    "samples": pa.int32(),
    "seconds": pa.float64(),
    "entropy": pa.float64(),
    "distinct_wrong": pa.float64(),
    "best": pa.float64(),
}
SCHEMA = pa.schema(
    [
        *PLAIN.items(),
        ("shares", pa.list_(pa.float32())),
        ("successes", pa.list_(pa.uint16())),
        ("rewards", pa.list_(pa.list_(pa.float64()))),
        ("times", pa.list_(pa.list_(pa.uint16()))),
    ]
)


def read_counts(path: Path) -> list[dict[str, Any]]:
    """The records of a file."""
    records = []
    for row in pq.read_table(path).to_pylist():
        successes, rewards, times = (row.pop(key) for key in ("successes", "rewards", "times"))
        if successes is None:
            pairs = zip(rewards, times, strict=True)
            row["counts"] = [[list(pair) for pair in zip(*one, strict=True)] for one in pairs]
        else:
            row["counts"] = successes
        records.append(row)
    return records


def write_counts(path: Path, records: list[dict[str, Any]]) -> None:
    """Replace a file by these records; a reader sees the old file or the new one."""
    rows = []
    for record in records:
        row = {key: record.get(key) for key in (*PLAIN, "shares")}
        if all(isinstance(count, int) for count in record["counts"]):
            row["successes"] = record["counts"]
        else:
            row["rewards"] = [[reward for reward, _ in pairs] for pairs in record["counts"]]
            row["times"] = [[times for _, times in pairs] for pairs in record["counts"]]
        rows.append(row)
    part = path.with_suffix(".part")
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    pq.write_table(table, part, compression="zstd", compression_level=19, store_schema=False,
                   dictionary_pagesize_limit=1 << 24, data_page_size=1 << 24)  # fmt: skip
    part.replace(path)
