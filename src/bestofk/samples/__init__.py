"""The samples of a run: read from a file that any tool wrote, or from rewards in memory.

>>> run = samples([[1, 0, 0, 0], [1, 1, 0, 1]], name="a")
>>> run.problems, run.live
(('0', '1'), array([4, 4]))
"""

from .files import SampleRow, from_records, read, rows
from .packing import BadFile
from .records import locate
from .run_names import named_paths, split_name, unique_names
from .sample_arrays import Samples, samples

__all__ = [
    "BadFile",
    "SampleRow",
    "Samples",
    "from_records",
    "locate",
    "named_paths",
    "read",
    "rows",
    "samples",
    "split_name",
    "unique_names",
]
