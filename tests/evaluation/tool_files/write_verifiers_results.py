"""Write verifiers_results.jsonl beside this script, with verifiers before its version 0.2.

    pip install verifiers==0.1.9; python tests/evaluation/tool_files/write_verifiers_results.py

Rollouts are made by hand, without a model; the file is what the package's own writer makes of them.
"""

import random
import shutil
import tempfile
from pathlib import Path

from verifiers.utils.eval_utils import make_dataset, save_to_disk

HERE = Path(__file__).parent
PROBLEMS, ROLLOUTS = 4, 3

if __name__ == "__main__":
    rng = random.Random(0)
    ids = [problem for problem in range(PROBLEMS) for _ in range(ROLLOUTS)]
    numbers = [rng.randrange(4) for _ in ids]
    timing = {"generation_ms": 0.0, "scoring_ms": 0.0, "total_ms": 0.0}
    broken: list[dict] = [{"error": None, "timing": timing} for _ in ids]
    broken[-1] = {"error": TimeoutError("too slow"), "timing": timing}
    results = {
        "example_id": ids,
        "prompt": [[{"role": "user", "content": f"What is {i} + 0?"}] for i in ids],
        "completion": [[{"role": "assistant", "content": f"It is {n}."}] for n in numbers],
        "task": ["sums"] * len(ids),
        "reward": [float(i == n) for i, n in zip(ids, numbers)],
        "info": [{}] * len(ids),
        "answer": [str(i) for i in ids],
        "state": broken,
        "metrics": {"correct": [float(i == n) for i, n in zip(ids, numbers)]},
        "metadata": {"state_columns": []},
    }
    folder = Path(tempfile.mkdtemp())
    save_to_disk(make_dataset(results), {}, folder)
    shutil.copy(folder / "results.jsonl", HERE / "verifiers_results.jsonl")
