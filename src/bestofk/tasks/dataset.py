"""Any data set as a task, by a small declaration: template, answer field, verifier."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bestofk.tasks.base import Split, Task, identity, one_of, unknown
from bestofk.tasks.rows import Row, read
from bestofk.types import Prompt

STYLES = ("chat", "text")
REFERENCES = {"maths": "\\boxed{{{expected}}}", "exact": "<answer>{expected}</answer>"}
Source = str | Path | Sequence[Row]


def dataset(
    *,
    train: Source | None = None,
    validation: Source | None = None,
    test: Source | None = None,
    prompt: str = "{prompt}",
    answer: str | None = None,
    answer_after: str = "",
    spec: Mapping[str, str] | None = None,
    reference: str | None = None,
    id: str | None = None,
    verifier: str = "maths",
    verifier_options: Mapping[str, Any] | None = None,
    system: str = "",
    style: str = "chat",
    name: str = "dataset",
    licence: str = "not stated",
    validation_share: float = 0.05,
    test_share: float = 0.05,
    limit: int | None = None,
    seed: int = 0,
) -> Task:
    """Prompts from rows of data.

    Args:
        train, validation, test: files (.jsonl, .json, .csv, also .gz; .parquet) or
            "hub:owner/name:config@split". With "train" alone the others are cut from it.
        prompt: template over the fields of a row: "{question}\\nAnswer in a box."
        answer: field with the expected answer; the verifier finds it as `expected`.
        answer_after: keep only what follows this mark in the answer ("####" for GSM8K).
        spec: further things that the verifier needs: its name for it, then the field.
        reference: template of a completion that must score 1.0, over the fields and `expected`;
            for maths and exact answers it is made from the expected answer.
        id: field that names a row; without it the id is made from the prompt.
        verifier, verifier_options: who judges.
        system: a system message put first (chat style).
        style: "chat" or "text".
        validation_share, test_share: what is cut from "train" for splits without a source.
        limit: at most so many prompts a split.
    """
    one_of("style", style, STYLES)
    sources = {"train": train, "validation": validation, "test": test}
    if all(source is None for source in sources.values()):
        raise ValueError("a data set names at least one of train, validation, test")

    def build(row: Row) -> Prompt:
        text = _fill(prompt, row, "prompt")
        needs = {key: _field(row, field) for key, field in (spec or {}).items()}
        if answer is not None:
            expected = str(_field(row, answer))
            if answer_after and answer_after not in expected:
                raise ValueError(f"no {answer_after!r} in the answer {expected[-80:]!r}")
            needs["expected"] = (
                expected.rpartition(answer_after)[2].strip() if answer_after else (expected.strip())
            )
        template = reference
        if template is None and "expected" in needs:
            template = REFERENCES.get(verifier)
        known = {**row, **needs}
        return Prompt(
            id=f"{name}/{_field(row, id)}" if id else identity(name, text),
            text=as_messages(style, system, text),
            task=name,
            spec=needs,
            reference=_fill(template, known, "reference") if template else None,
        )

    shares = {"validation": validation_share, "test": test_share}
    return from_prompts(
        name,
        {key: _loader(source, build) for key, source in sources.items() if source is not None},
        shares=shares,
        verifier=verifier,
        verifier_options=verifier_options or {},
        licence=licence,
        limit=limit,
        seed=seed,
        summary=f"rows of data, judged by {verifier}",
    )


def _loader(source: Source, build: Callable[[Row], Prompt]) -> Callable[[], list[Prompt]]:
    return lambda: [build(row) for row in read(source)]


def from_prompts(
    name: str,
    loaders: Mapping[str, Callable[[], list[Prompt]]],
    *,
    verifier: str,
    verifier_options: Mapping[str, Any],
    licence: str,
    shares: Mapping[str, float],
    limit: int | None,
    seed: int,
    summary: str,
) -> Task:
    """A task from lists of prompts, with missing splits cut from "train" and overlaps removed.

    A problem is its text: one that is in test is taken out of validation and train, and one in
    validation out of train. A row that occurs twice stays once.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit is at least 1, got {limit}")
    cut = {key: shares.get(key, 0.0) for key in ("validation", "test") if key not in loaders}
    if "train" not in loaders:
        cut = {}
    cut = {key: share for key, share in cut.items() if share > 0}
    if any(share < 0 for share in shares.values()) or sum(cut.values()) >= 1:
        raise ValueError(f"shares are not negative and leave something for train, got {shares}")
    order = [key for key in ("test", "validation", "train") if key in loaders or key in cut]
    order += [key for key in loaders if key not in order]
    built: dict[str, list[Prompt]] = {}

    def build() -> None:
        loaded = {key: load() for key, load in loaders.items()}
        pools: dict[str, list[Prompt]] = {key: loaded.get(key, []) for key in order}
        if cut:
            pools["train"] = []
            for item in loaded["train"]:
                pools[_share(item, cut)].append(item)
        taken: set[str] = set()
        by_id: dict[str, Prompt] = {}
        for key in order:
            built[key] = []
            for item in pools[key]:
                if _content(item) in taken or by_id.get(item.id) == item:
                    continue
                if item.id in by_id:
                    raise ValueError(f"{name}: the id {item.id!r} names two different problems")
                by_id[item.id] = item
                built[key].append(item)
            taken |= {_content(item) for item in built[key]}

    def make(split: str) -> Split:
        if not built:
            build()
        kept = built[split][:limit]
        if not kept:
            raise ValueError(f"{name} has no prompt in split {split!r}")
        return Split(kept, len(kept), seed=seed)

    splits = tuple(key for key in ("train", "validation", "test") if key in order)
    return Task(
        name=name,
        verifier=verifier,
        verifier_options=dict(verifier_options),
        make=make,
        splits=splits + tuple(key for key in order if key not in splits),
        licence=licence,
        summary=summary,
    )


def _content(prompt: Prompt) -> str:
    """What makes two prompts the same problem: their text, up to white space."""
    text = prompt.text if isinstance(prompt.text, str) else prompt.text[-1]["content"]
    return " ".join(text.split())


def _share(prompt: Prompt, cut: Mapping[str, float]) -> str:
    """The split of a row, by the hash of its content: adding rows moves no other row."""
    digest = hashlib.sha256(b"split " + _content(prompt).encode("utf-8", "surrogatepass")).digest()
    point = int.from_bytes(digest[:8]) / 2**64
    for key, share in cut.items():
        point -= share
        if point < 0:
            return key
    return "train"


def as_messages(style: str, system: str, text: str) -> str | tuple[dict[str, str], ...]:
    """A prompt as chat messages or as plain text."""
    if style == "text":
        return f"{system}\n\n{text}" if system else text
    first = ({"role": "system", "content": system},) if system else ()
    return (*first, {"role": "user", "content": text})


def _field(row: Row, field: str) -> Any:
    if field not in row:
        raise unknown("field of the data", field, row)
    return row[field]


def _fill(template: str, row: Row, what: str) -> str:
    try:
        return template.format_map(row)
    except KeyError as error:
        raise unknown(f"field in the {what} template", str(error.args[0]), row) from error
    except (IndexError, ValueError, AttributeError) as error:
        raise ValueError(
            f"the {what} template is text with {{field}} in it, and {{{{ }}}} for braces: {error}"
        ) from error
