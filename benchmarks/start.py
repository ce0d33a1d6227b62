"""CPU seconds until something is there: `import bestofk`, help, the settings of a recipe.

The peer is `import numpy`, which all of them need, in processes taken in turns.
"""

from __future__ import annotations

import resource
import subprocess
import sys

from _measure import machine, table

STARTS = {
    "import bestofk": ["-c", "import bestofk"],
    "bestofk --help": ["-m", "bestofk", "--help"],
    "bestofk eval --help": ["-m", "bestofk", "eval", "--help"],
    "bestofk train --help": ["-m", "bestofk", "train", "--help"],
}
NUMPY = ["-c", "import numpy"]


def cpu_seconds(arguments: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    rows = [("start", "CPU seconds", "× import numpy")]
    for name, arguments in STARTS.items():
        pairs = [(cpu_seconds(arguments), cpu_seconds(NUMPY)) for _ in range(9)]
        ours, peer = (min(pair[i] for pair in pairs) for i in (0, 1))
        rows.append((name, f"{ours:.2f}", f"{ours / peer:.2f}"))
    table(f"Start, best of 9 ({machine()})", rows)
