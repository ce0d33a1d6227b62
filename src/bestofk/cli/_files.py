"""What `eval`, `compare` and `report` have in common: files of samples, named and read."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from bestofk.cli._options import VerbOptions, option

if TYPE_CHECKING:
    from bestofk.samples import Samples


class ReadingOptions(VerbOptions):
    """How files are read, and what every number is made with."""

    scores: str = option("COLUMN", default="")
    """Column that chooses, or votes (maj@k:weighted)."""
    value: str = option("FILE.py:NAME", default="")
    """Your function of k samples, for subsets@k."""
    price: float = 0.0
    """Price in reward of a draw or token, for retry@k."""
    threshold: float | None = None
    """A reward of at least this passes."""
    bounds: tuple[float, float] | None = option("LOW HIGH", default=None)
    """Range of rewards or values, where not 0 to 1."""
    map: tuple[str, ...] = option("ROLE=COLUMN", "--columns", default=())
    """Override the detected columns; `ROLE=` leaves one out. Roles: problem_id, sample_id, reward,
    answer, completion, prompt, ..."""
    where: tuple[str, ...] = option("COLUMN=VALUE", default=())
    """Read such records only."""
    encoding: str = "utf-8"
    """Encoding of text files."""
    cluster: str | None = option("COLUMN", default=None)
    """Column that groups problems of one source, or `prefix` of their ids."""
    confidence: float = 0.95
    """Level of the intervals."""
    seed: int = 0
    """Seed of the bootstrap: the same seed gives the same numbers."""

    def reading(self) -> dict[str, Any]:
        """What `read` takes."""
        scores = {"score": self.scores} if self.scores else {}
        return {
            "columns": {**pairs(self.map, "--map"), **scores},
            "where": pairs(self.where, "--where"),
            "encoding": self.encoding,
            "cluster": self.cluster or None,
        }

    def numbers(self) -> dict[str, Any]:
        """What estimates, tests, pages and plans take."""
        from bestofk.rewards import load_function

        names = {"threshold", "bounds", "confidence", "seed", "resamples", "price"}
        numbers = {name: each for name, each in self if name in names}
        return numbers | {"value": load_function(self.value, "function") if self.value else None}


class FileOptions(ReadingOptions):
    """What `eval` and `compare` have in common."""

    k: str = option("1,4,16", default="")
    """The k to print, separated by commas; by default powers of two up to n."""
    metric: str = ""
    """One or several: pass@k, max@k, mean, maj@k:weighted, select@k, retry@k, pass^k, ..."""
    small: Literal["error", "drop"] = "error"
    """Problems with fewer than k scored samples: raise an error, or drop them."""
    judge: str = ""
    """Score the responses of a file that scored only some of them: `target` compares each with the
    target, `regex:PATTERN` its first group."""
    methods: bool = False
    """Also print a paragraph for a paper."""
    latex: bool = False
    """Also print the table in LaTeX."""
    wide: bool = False
    """Show all columns: bands, intervals for these problems only, wins and losses."""
    resamples: int | None = None
    """Draws of the bootstrap and sign flips; by default as many as the printed digits need."""

    def numbers(self) -> dict[str, Any]:
        return super().numbers() | {"ks": self.ks(), "small": self.small}

    def reading(self) -> dict[str, Any]:
        return super().reading() | {"judge": self.judge or None}

    def ks(self) -> list[int]:
        """Those of --k, or of the metric: 8 of max@8."""
        of_metric = ",".join(dict.fromkeys(re.findall(r"[@^](\d+)", self.metric)))
        return whole_numbers(self.k or of_metric, "--k")


def whole_numbers(text: str, option: str) -> list[int]:
    """The k of an option, separated by commas.

    >>> whole_numbers("1, 4", "--k")
    [1, 4]
    """
    try:
        result = [int(each) for each in text.replace(" ", "").split(",") if each]
    except ValueError:
        raise ValueError(f"{option} takes whole numbers like 1,4,16; got {text!r}") from None
    if result and min(result) < 1:
        raise ValueError(f"{option} takes k of at least 1, got {min(result)}")
    return result


def pairs(texts: tuple[str, ...], option: str) -> dict[str, str]:
    """key=value pairs of a repeatable option.

    >>> pairs(("reward=score", "step=10"), "--where")
    {'reward': 'score', 'step': '10'}
    """
    result = {}
    for text in texts:
        for each in text.split(",") if option == "--map" else [text]:
            key, equals, value = each.partition("=")
            if not equals or not key:
                raise ValueError(f"{option} takes key=value, got {each!r}")
            result[key.strip()] = value.strip()
    return result


def json_pairs(texts: tuple[str, ...]) -> dict[str, Any]:
    """Options as typed: key=value, the value as JSON where it is JSON, else as a word.

    >>> json_pairs(("numbers=3", "style=compact", "sizes=[5, 7]"))
    {'numbers': 3, 'style': 'compact', 'sizes': [5, 7]}
    """
    options: dict[str, Any] = pairs(texts, "an option")
    for key, value in options.items():
        with contextlib.suppress(ValueError):
            options[key] = json.loads(value)
    return options


def read_all(targets: tuple[str, ...], reading: FileOptions) -> list[Samples]:
    """Every run, with a progress bar for people, under names that differ."""
    from bestofk.cli._terminal import bar
    from bestofk.samples import named_paths, read

    runs = []
    for name, path in named_paths(targets):
        with bar(f"reading {path.name}", 1) as advance:
            runs.append(read(path, name=name, progress=_share_to(advance), **reading.reading()))
    return runs


def _share_to(advance: Callable[[float], None]) -> Callable[[int, int], None]:
    return lambda size, total: advance(size / max(total, 1))


def metrics_of(reading: FileOptions, runs: list[Samples]) -> list[Any]:
    """The metrics asked for, max@k for max@8; or the one that fits the rewards."""
    from bestofk.evaluation.per_problem import default_metric

    stated = re.sub(r"(?<=[@^])\d+", "k", reading.metric).split(",")
    return stated if reading.metric else [default_metric(runs, reading.threshold)]
