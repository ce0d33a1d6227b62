"""Any dataset as a task, by a small declaration: template, answer field, verifier."""

from __future__ import annotations

import hashlib
import json
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bestofk.common import unknown
from bestofk.tasks.data_rows import Row, each, read
from bestofk.tasks.definition import Split, Task, identity, one_of
from bestofk.types import Prompt, plain_text

STYLES = ("chat", "text")
REFERENCES = {"maths": "\\boxed{{{expected}}}", "exact": "<answer>{expected}</answer>"}
Source = str | Path | Iterable[Row] | Callable[[], Sequence[Row]]
"""A file, folder or Hub id (see `data_rows.read`), rows in Python, or a function that gets rows."""
JSON_KINDS = (str, int, float, bool, type(None), list, dict)


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
        train, validation, test: files (.jsonl, .json, .csv, also .gz; .parquet, .arrow), a folder
            that datasets.save_to_disk wrote, or "hub:owner/name:config@split"; in Python also rows,
            or a function that gets them when a split is first used. With "train" alone the others
            are cut from it.
        prompt: template over the fields of a row: "{question}\\nAnswer in a box." A `prompt` field
            that holds chat messages is used as it is.
        answer: field with the expected answer, text or a number; the verifier finds it as
            `expected`.
        answer_after: keep only what follows this mark in the answer ("####" for GSM8K).
        spec: further fields that the verifier needs: its name for the field, then the field. A
            reward function of yours gets all fields of the row.
        reference: template of a completion that must score 1.0, over the fields and `expected`;
            for maths and exact answers it is made from the expected answer.
        id: field that names a row; without it the id is made from the prompt.
        verifier, verifier_options: who judges.
        system, style: a system message put first; "chat" or "text".
        validation_share, test_share: what is cut from "train" for splits without a source.
        limit: at most so many prompts a split.
    """
    sources = {"train": train, "validation": validation, "test": test}
    declaration = _Declaration(
        name, prompt, answer, answer_after, spec or {}, reference, id, verifier, system, style
    )
    return from_prompts(
        name,
        {
            key: _loader(key, source, declaration.prompt_of)
            for key, source in sources.items()
            if source is not None
        },
        shares={"validation": validation_share, "test": test_share},
        verifier=verifier,
        verifier_options=verifier_options or {},
        licence=licence,
        limit=limit,
        seed=seed,
        summary=f"rows of data, judged by {verifier}",
    )


@dataclass(frozen=True)
class _Declaration:
    """What a row becomes; the fields are the arguments of `dataset`."""

    name: str
    prompt: str
    answer: str | None
    answer_after: str
    spec: Mapping[str, str]
    reference: str | None
    id: str | None
    verifier: str
    system: str
    style: str

    def __post_init__(self) -> None:
        one_of("style", self.style, STYLES)
        if self.answer is not None and "expected" in self.spec:
            raise ValueError(
                "the expected answer is stated once, got both answer and spec.expected"
            )

    def prompt_of(self, row: Row) -> Prompt:
        needs = {key: _field(row, field) for key, field in self.spec.items()}
        if ":" in self.verifier:  # a function of the user's, which may ask for any field
            plain = {key: value for key, value in row.items() if isinstance(value, JSON_KINDS)}
            needs = {**plain, **needs}
        if self.answer is not None:
            needs["expected"] = _after(_text(row, self.answer), self.answer_after)
        elif self.verifier in REFERENCES and "expected" in needs:
            needs["expected"] = _text(row, self.spec["expected"])
        template = self.reference
        if template is None and "expected" in needs:
            template = REFERENCES.get(self.verifier)
        messages = row.get("prompt") if self.prompt == "{prompt}" else None
        chat = isinstance(messages, list)
        text = _fill(self.prompt, row, "prompt") if not chat else json.dumps(messages)
        return Prompt(
            id=f"{self.name}/{_text(row, self.id)}" if self.id else identity(self.name, text),
            text=_checked_messages(messages, self.system)
            if chat
            else as_messages(self.style, self.system, text),
            task=self.name,
            spec=needs,
            reference=_reference(template, {**row, **needs}) if template else None,
        )


def _checked_messages(messages: Any, system: str) -> tuple[dict[str, str], ...]:
    """Chat messages of the data, with the system message put first."""
    for one in messages:
        if not isinstance(one, Mapping) or not isinstance(one.get("content"), str):
            raise ValueError(
                'a prompt of messages reads [{"role": "user", "content": "…"}], got '
                f"{messages!r:.80}"
            )
    first = ({"role": "system", "content": system},) if system else ()
    rest = ({"role": str(m.get("role", "user")), "content": m["content"]} for m in messages)
    return (*first, *rest)


def _after(answer: str, mark: str) -> str:
    if mark and mark not in answer:
        raise ValueError(f"no {mark!r} in the answer {answer[-80:]!r}")
    return (answer.rpartition(mark)[2] if mark else answer).strip()


def _loader(
    split: str, source: Source, build: Callable[[Row], Prompt]
) -> Callable[[], list[Prompt]]:
    where = str(source) if isinstance(source, str | Path) else split
    return lambda: each(source() if callable(source) else read(source, split), where, build)


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
    keep_repeats: bool = False,
) -> Task:
    """A task from lists of prompts, with missing splits cut from "train" and overlaps removed.

    A problem is its text: one that is in test is taken out of validation and train, and one in
    validation out of train. Within a split, rows with the same text that are judged the same stay
    once, whatever their ids; `keep_repeats` keeps a published set as it was published.
    """
    if not loaders:
        raise ValueError(f"{name} names at least one source: train, validation or test")
    if limit is not None and limit < 1:
        raise ValueError(f"limit is at least 1, got {limit}")
    cut = {key: shares.get(key, 0.0) for key in ("validation", "test") if key not in loaders}
    if "train" not in loaders:
        cut = {}
    if not all(0 <= share < 1 for share in shares.values()) or not sum(cut.values()) < 1:
        raise ValueError(f"shares are not negative and leave something for train, got {shares}")
    cut = {key: share for key, share in cut.items() if share > 0}
    order = [key for key in ("test", "validation", "train") if key in loaders or key in cut]
    order += [key for key in loaders if key not in order]
    built: dict[str, list[Prompt]] = {}

    def make(split: str) -> Split:
        if not built:
            loaded = {key: load() for key, load in loaders.items()}
            built.update(_apart(name, loaded, cut, order, keep_repeats))
        kept = built[split][:limit]
        if not kept:
            raise ValueError(
                f"{name} has no prompt in split {split!r}: name a source for it, raise "
                f"{split}_share, or set evaluation.split to one of those with prompts "
                f"({', '.join(key for key, prompts in built.items() if prompts) or 'none'})"
            )
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


def _apart(
    name: str,
    loaded: Mapping[str, list[Prompt]],
    cut: Mapping[str, float],
    order: Sequence[str],
    keep_repeats: bool,
) -> dict[str, list[Prompt]]:
    """The splits in `order`, each without the problems of those before it."""
    pools: dict[str, list[Prompt]] = {key: list(loaded.get(key, [])) for key in order}
    if cut:
        pools["train"] = []
        for item in loaded["train"]:
            pools[_share(item, cut)].append(item)
    taken: set[str] = set()
    by_id: dict[str, Prompt] = {}
    kept: dict[str, list[Prompt]] = {key: [] for key in order}
    for key in order:
        specs: dict[str, list[Mapping[str, Any]]] = {}
        for item in pools[key]:
            content = _content(item)
            if content in taken or by_id.get(item.id) == item:
                continue
            if item.id in by_id:
                raise ValueError(f"{name}: the id {item.id!r} names two different problems")
            if not keep_repeats and item.spec in specs.setdefault(content, []):
                continue
            specs.setdefault(content, []).append(item.spec)
            by_id[item.id] = item
            kept[key].append(item)
        taken |= specs.keys()
    return kept


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


def _text(row: Row, field: str) -> str:
    value = _field(row, field)
    try:
        return plain_text(value)
    except ValueError as error:
        raise ValueError(f"field {field!r}: {error}") from error


class Absent(ValueError):
    """A template asks for a field that is null in this row."""


class _Filler(string.Formatter):
    """Fills templates; what is null has no place in a text, where it would read "None"."""

    def get_field(self, name: str, args: Any, fields: Any) -> Any:
        value, first = super().get_field(name, args, fields)
        if value is None or (isinstance(value, float) and value != value):
            raise Absent(f"the field {name!r} is null; repair or remove the row")
        return value, first


def _reference(template: str, row: Row) -> str | None:
    """The completion that must score 1.0; None in a row that has none."""
    try:
        return _fill(template, row, "reference")
    except Absent:
        return None


def _fill(template: str, row: Row, what: str) -> str:
    try:
        return _Filler().vformat(template, (), row)
    except Absent:
        raise
    except KeyError as error:
        raise unknown(f"field in the {what} template", str(error.args[0]), row) from error
    except (IndexError, ValueError, AttributeError, TypeError) as error:
        raise ValueError(
            f"the {what} template is text with {{field}} in it, and {{{{ }}}} for braces: {error}"
        ) from error
