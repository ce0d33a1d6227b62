"""Read samples, evaluate and compare runs, write a report."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from bestofk import evaluation
from bestofk.evaluation import Comparison, Curve, Metric
from bestofk.evaluation.per_problem import default_metric
from bestofk.samples import Samples


@runtime_checkable
class SampledRun(Protocol):
    """A trained run, as far as evaluation and reports need it."""

    @property
    def path(self) -> Path: ...

    def sample(
        self, split: str | None = None, n: int | None = None, prompts: int | None = None
    ) -> Samples: ...


@dataclass(frozen=True, repr=False)
class ReportFile:
    """A report that was written."""

    path: Path
    size: int
    """Bytes of the page."""
    verdicts: tuple[str, ...]

    def __repr__(self) -> str:
        return "\n".join([f"{self.path} ({self.size / 1e6:.1f} MB)", *self.verdicts])

    def _repr_html_(self) -> str:
        paragraphs = "".join(f"<p>{html.escape(text)}</p>" for text in self.verdicts)
        path = html.escape(str(self.path), quote=True)
        return f'<p><a href="{path}">{path}</a></p>{paragraphs}'


def read(source: Any, *, name: str | None = None, **options: Any) -> Samples:
    """Samples from a file of any supported tool, a run's folder, or rewards in memory.

    Args:
        source: a path (JSONL, CSV, parquet, …, or the folder of a run); a DataFrame or a list of
            dicts, as a file's rows; a dict {problem: rewards}; or rewards, one row per problem, NaN
            or None where a sample has no score.
        name: the run's name in tables; by default the file's.
        options: cluster="source" (problems of one are alike), columns={"reward": "score"},
            where={"step": "10"}, encoding: as for `bestofk.samples.read`.

    Raises:
        ValueError: not a file of samples; says the line and the remedy.

    >>> read([[1, 0, 0, 1], [0, 0, 0, 0]], name="base")
    base: 2 problems × 4 samples
    >>> read([{"id": "a", "correct": True}, {"id": "a", "correct": False}])
    samples: 1 problem × 2 samples
    """
    if isinstance(source, Samples):
        if options:
            raise ValueError(
                f"{source.name!r} is read already: state {', '.join(options)} in read()"
            )
        return source if name is None else replace(source, name=name)
    if isinstance(source, str | PathLike):
        return evaluation.read(Path(source), name=name, **options)
    named = name or "samples"
    source = list(source) if isinstance(source, Iterator) else source
    if hasattr(source, "columns"):  # a DataFrame of pandas, or of polars
        if hasattr(source, "notna"):  # what is missing is None, as in files
            source = source.astype(object).where(source.notna(), None)
        rows = source.to_dicts() if hasattr(source, "to_dicts") else source.to_dict("records")
        return evaluation.from_records(rows, name=named, **options)
    if isinstance(source, Mapping):
        options["problems"] = list(source)
        return evaluation.samples(list(source.values()), name=named, **options)
    if isinstance(source, list | tuple) and source and isinstance(source[0], Mapping):
        return evaluation.from_records(source, name=named, **options)
    return evaluation.samples(source, name=named, **options)


def evaluate(
    what: Any,
    k: Sequence[int] | int | None = None,
    *,
    metric: Metric | None = None,
    threshold: float | None = None,
    cluster: str | None = None,
    **options: Any,
) -> Curve:
    """pass@k or max@k of a run at every k, with intervals over problems.

    Args:
        what: samples, whatever `read` takes, or a `TrainedRun`: its final model is sampled on the
            held-out split.
        k: the k to show; by default powers of two up to the number of samples per problem.
        metric: by default pass@k for rewards 0 and 1 or with a threshold, else max@k.
        threshold: a reward of at least this passes.
        cluster: the column of the file or DataFrame that says which problems are alike.
        options: confidence, seed, bounds, value, …: as for `bestofk.evaluation.curve`.

    Raises:
        ValueError: k exceeds the samples per problem; a metric that the rewards do not have.

    >>> evaluate([[1, 0, 0, 1], [0, 0, 0, 0]]).at(2).value.__round__(3)
    0.417
    """
    ks = (k,) if isinstance(k, int) else tuple(k or ())
    if isinstance(what, SampledRun):
        what = what.sample(n=max(ks, default=None))
    samples = read(what, **({"cluster": cluster} if cluster else {}))
    chosen = metric or default_metric([samples], threshold)
    return evaluation.curve(samples, chosen, ks=ks, threshold=threshold, **options)


def compare(
    a: Any,
    b: Any,
    k: Sequence[int] | int | None = None,
    *,
    metric: Metric | None = None,
    threshold: float | None = None,
    cluster: str | None = None,
    **options: Any,
) -> Comparison:
    """Whether run b is better than run a, paired by problem, at every k.

    Args:
        a, b: samples, or whatever `read` takes.
        k: the k to show; by default powers of two.
        metric, threshold, cluster: as in `evaluate`.
        options: at, confidence, seed, …: as for `bestofk.evaluation.compare`.

    Raises:
        ValueError: no common problem, k exceeds the samples per problem.

    >>> a, b = read([[0, 0, 0, 1]] * 8, name="a"), read([[0, 1, 1, 1]] * 8, name="b")
    >>> compare(a, b).at(1).value
    0.5
    """
    ks = (k,) if isinstance(k, int) else tuple(k or ())
    runs = [read(each, **({"cluster": cluster} if cluster else {})) for each in (a, b)]
    if runs[0].name == runs[1].name:
        runs = [read(run, name=f"{run.name} ({letter})") for run, letter in zip(runs, "ab")]
    chosen = metric or default_metric(runs, threshold)
    (result,) = evaluation.compare(runs, chosen, ks=ks, threshold=threshold, **options)
    return result


def report(what: Any, out: str | PathLike[str] = "report.html", **options: Any) -> ReportFile:
    """One self-contained page on runs and samples; the first is the one others are compared with.

    Args:
        what: one run, or a list: paths, samples that were read from files, trained runs.
        out: the file to write; an existing one is replaced.
        options: title, cluster, threshold, bounds, k_max: as for `bestofk report`.

    Raises:
        ValueError: samples without a file; nothing to show. OSError: cannot write.
    """
    from bestofk.reports import load, make

    runs = what if isinstance(what, list | tuple) else [what]
    sources = load([_argument(run) for run in runs], cluster=options.pop("cluster", None))
    built = make(sources, Path(out), **options)
    verdicts = tuple(f"{one.metric}: {one.verdict}" for one in built.findings.comparisons)
    return ReportFile(built.page, built.size, verdicts)


def _argument(run: Any) -> str:
    """A run as `bestofk report` takes it: NAME=PATH."""
    if isinstance(run, SampledRun):
        return f"{run.path.name}={run.path}"
    if not isinstance(run, Samples):
        return str(run)
    path = run.metadata.get("path")
    if path is None:
        raise ValueError(
            f"a report shows completions, and {run.name!r} was made in memory: write the samples "
            "to a JSONL file and read that"
        )
    return f"{run.name}={path}"
