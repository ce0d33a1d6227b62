"""Any dataset as a task, by a small declaration: template, answer field, verifier."""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bestofk.messages import one_of, unknown
from bestofk.tasks.data_rows import Row, each, read
from bestofk.tasks.definition import Split, Task, identity, share_of
from bestofk.tasks.schemas import (
    ANSWERS,
    QUESTIONS,
    answer_of,
    chat,
    field,
    first_field,
    without_answer,
)
from bestofk.types import Prompt, plain_text

STYLES = ("chat", "text")
REFERENCES = {"maths": "\\boxed{{{expected}}}", "exact": "<answer>{expected}</answer>"}
FORMS = {
    "maths": (("box", "####", "answer:"), "\n\nGive the final answer in \\boxed{}."),
    "exact": (("<answer>",), "\n\nGive the answer alone between <answer> and </answer>."),
}
"""What shows that a prompt asks for the form that a verifier reads, and a sentence that does."""
Source = str | Path | Iterable[Row] | Callable[[], Sequence[Row]]
"""A file, folder or Hub id (see `data_rows.read`), rows in Python, or a function that gets rows."""
JSON_KINDS = (str, int, float, bool, type(None), list, dict)


def dataset(
    *,
    train: Source | None = None,
    validation: Source | None = None,
    test: Source | None = None,
    prompt: str = "",
    answer: str | None = None,
    answer_after: str = "",
    spec: Mapping[str, str] | None = None,
    reference: str | None = None,
    id: str | None = None,
    verifier: str = "maths",
    verifier_options: Mapping[str, Any] | None = None,
    system: str = "",
    ask: bool = True,
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
        train, validation, test: files (.jsonl, .json, .csv, .tsv, also .gz; .parquet, .arrow), a
            pattern ("data/*.parquet"), a folder of such files or that datasets.save_to_disk wrote,
            or "hub:owner/name:config@split"; in Python also rows, or a function that gets them when
            a split is first used. With "train" alone the others are cut from it.
        prompt: template over the fields of a row: "{question}\\nAnswer in a box."; by default the
            first of prompt, question, problem, messages and the like. A template that is one field
            with chat messages in it is used as it is. Fields may be dotted: "{extra_info.text}".
        answer: field with the expected answer, text or a number; the verifier finds it as
            `expected`. For maths and exact answers by default the first of
            reward_model.ground_truth, answer, ground_truth, solution and the like. Of a worked
            solution, the last box, or what follows ####, counts.
        answer_after: keep only what follows this mark in the answer.
        spec: further fields that the verifier needs: its name for the field, then the field. A
            reward function of yours gets all fields of the row.
        reference: template of a completion that must score 1.0, over the fields and `expected`;
            for maths and exact answers it is made from the expected answer.
        id: field that names a row; without it the id is made from the prompt.
        verifier, verifier_options: who judges.
        system, style: a system message put first; "chat" or "text".
        ask: where a prompt does not ask for the form that the verifier reads (a box for maths, an
            <answer> tag for exact answers), add a sentence that does.
        validation_share, test_share: what is cut from "train" for splits without a source.
        limit: at most so many prompts a split.
    """
    sources = named_sources(train=train, validation=validation, test=test)
    declaration = _Declaration(
        name, prompt, answer, answer_after, spec or {}, reference, id, verifier, system, style, ask,
    )  # fmt: skip
    return from_prompts(
        name,
        lambda task: {
            split: prompts_of(
                split, source, partial(declaration.prompt_of, task.read_as), task.left_out
            )
            for split, source in sources.items()
        },
        tuple(sources),
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
    ask: bool

    def __post_init__(self) -> None:
        one_of("style", self.style, STYLES)
        if self.answer is not None and "expected" in self.spec:
            raise ValueError(
                "the expected answer is stated once, got both answer and spec.expected"
            )

    def prompt_of(self, read_as: Counter[str], row: Row) -> Prompt:
        """The prompt of a row; `read_as` counts what is recognised in rows."""
        needs = {key: field(row, name) for key, name in self.spec.items()}
        if ":" in self.verifier:  # a function of the user's, which may ask for any field
            plain = {key: value for key, value in row.items() if isinstance(value, JSON_KINDS)}
            needs = {**plain, **needs}
        answer = self._answer_field(row)
        if answer is not None:
            needs["expected"] = answer_of(row, answer, self.answer_after)
        template = self.reference
        if template is None and "expected" in needs:
            template = REFERENCES.get(self.verifier)
        question = self._template(row)
        text, messages = self._question(row, question, str(needs.get("expected", "")))
        if not text.strip() or messages == []:
            raise ValueError("the prompt is empty")
        id = f"{self.name}/{_text(row, self.id)}" if self.id else identity(self.name, text)
        sentence = self._form(text)
        if messages is None:
            text += sentence
        elif sentence:
            at = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=-1)
            messages[at] = messages[at] | {"content": messages[at]["content"] + sentence}
        if not self.prompt or (answer and not self.answer):
            in_chat = " (chat messages)" if messages else ""
            rest = f", answer={answer}" if answer else ""
            read_as[f"prompt={question.strip('{}')}{in_chat}{rest}"] += 1
        return Prompt(
            id=id,
            text=as_messages(self.style, self.system, text)
            if messages is None
            else self._with_system(messages),
            task=self.name,
            spec=needs,
            reference=_reference(template, {**row, **needs}) if template else None,
        )

    def _form(self, text: str) -> str:
        """The sentence that asks for the form of the answer, where nothing does."""
        signs, sentence = FORMS.get(self.verifier, ((), ""))
        lowered = f"{self.system}\n{text}".lower()
        return "" if not self.ask or any(sign in lowered for sign in signs) else sentence

    def _answer_field(self, row: Row) -> str | None:
        """The field with the answer, where the verifier compares with one."""
        if self.answer is not None or "expected" in self.spec:
            return self.answer or self.spec["expected"]
        if self.verifier not in REFERENCES:
            return None
        name = first_field(row, ANSWERS)
        if name is None:
            raise ValueError(
                f"verifier {self.verifier!r} compares with an answer, and none of the fields is "
                f"known to hold one ({', '.join(row)}): name it by task.options.answer, or "
                "judge by a function of yours (task.verifier = file.py:function)"
            )
        return name

    def _template(self, row: Row) -> str:
        """The template of the prompt, as stated or by the fields of the row."""
        if self.prompt:
            return self.prompt
        name = first_field(row, QUESTIONS)
        if name is None:
            raise ValueError(
                f"none of the fields is known to hold a question ({', '.join(row)}): name it by "
                f'task.options.prompt, in Python prompt=, for example "{{{next(iter(row), "q")}}}"'
            )
        if name == "instruction" and row.get("input"):  # Alpaca's
            return "{instruction}\n\n{input}"
        return f"{{{name}}}"

    def _question(
        self, row: Row, template: str, expected: str
    ) -> tuple[str, list[dict[str, str]] | None]:
        """The text that is asked; and the messages, where it is a chat."""
        one = _ONE_FIELD.fullmatch(template)
        messages = chat(field(row, one[1])) if one else None
        if one is None or messages is None:
            return _fill(template, row, "prompt"), None
        messages = without_answer(messages, one[1], expected)
        return json.dumps(messages), messages

    def _with_system(self, messages: list[dict[str, str]]) -> str | tuple[dict[str, str], ...]:
        if self.style == "text":
            parts = [*([self.system] if self.system else []), *(m["content"] for m in messages)]
            return "\n\n".join(parts)
        first = [{"role": "system", "content": self.system}] if self.system else []
        return (*first, *messages)


_ONE_FIELD = re.compile(r"\{([^{}!:\[\]]+)\}")


def named_sources(**sources: Source | None) -> dict[str, Source]:
    """The sources by split, without the splits that have none."""
    return {split: source for split, source in sources.items() if source is not None}


def prompts_of(
    split: str, source: Source, build: Callable[[Row], Prompt], left_out: dict[str, str]
) -> list[Prompt]:
    """The prompts that `build` makes of the rows of a source."""
    where = str(source) if isinstance(source, str | Path) else split
    rows = source() if callable(source) else read(source, split)
    prompts = each(rows, where, build, left_out)
    if not prompts and not left_out:
        raise ValueError(f"{where} has no rows of data")
    return prompts


def from_prompts(
    name: str,
    load: Callable[[Task], Mapping[str, list[Prompt]]],
    sources: Sequence[str],
    *,
    verifier: str,
    verifier_options: Mapping[str, Any],
    licence: str,
    limit: int | None,
    seed: int,
    summary: str,
    shares: Mapping[str, float] = MappingProxyType({}),
    keep_repeats: bool = False,
) -> Task:
    """A task from lists of prompts, with missing splits cut from "train" and overlaps removed.

    `load` makes the lists of the splits named in `sources`, when a split is first used, and notes
    in the task what it leaves out and how rows are read.

    A problem is its text: one that is in test is taken out of validation and train, and one in
    validation out of train. Within a split, rows with the same text that are judged the same stay
    once, whatever their ids; `keep_repeats` keeps a published set as it was published.
    """
    if not sources:
        raise ValueError(f"{name} names at least one source: train, validation or test")
    if limit is not None and limit < 1:
        raise ValueError(f"limit is at least 1, got {limit}")
    cut = {key: shares.get(key, 0.0) for key in ("validation", "test") if key not in sources}
    if "train" not in sources:
        cut = {}
    if not all(0 <= share < 1 for share in shares.values()) or not sum(cut.values()) < 1:
        raise ValueError(f"shares are not negative and leave something for train, got {shares}")
    cut = {key: share for key, share in cut.items() if share > 0}
    order = [key for key in ("test", "validation", "train") if key in sources or key in cut]
    order += [key for key in sources if key not in order]
    built: dict[str, list[Prompt]] = {}

    def make(split: str) -> Split:
        reasons = task.left_out
        if not built:
            built.update(_apart(name, load(task), cut, order, keep_repeats, reasons))
        prompts = built[split][:limit]
        if not prompts:
            counts = Counter(why for row, why in reasons.items() if row.startswith(f"{split},"))
            why = "; ".join(f"{number} rows were {reason}" for reason, number in counts.items())
            raise ValueError(
                f"{name} has no prompt in split {split!r}{why and f' ({why})'}: "
                "name a source for it, raise "
                f"{split}_share, or set evaluation.split to one of those with prompts "
                f"({', '.join(key for key, rows in built.items() if rows) or 'none'})"
            )
        return Split(prompts, len(prompts), seed=seed)

    splits = tuple(key for key in ("train", "validation", "test") if key in order)
    task = Task(
        name=name,
        verifier=verifier,
        verifier_options=dict(verifier_options),
        make=make,
        splits=splits + tuple(key for key in order if key not in splits),
        licence=licence,
        summary=summary,
    )
    return task


def _apart(
    name: str,
    loaded: Mapping[str, list[Prompt]],
    cut: Mapping[str, float],
    order: Sequence[str],
    keep_repeats: bool,
    left_out: dict[str, str],
) -> dict[str, list[Prompt]]:
    """The splits in `order`, each without the problems of those before it."""
    pools: dict[str, list[Prompt]] = {key: list(loaded.get(key, [])) for key in order}
    if cut:
        pools["train"] = []
        for item in loaded["train"]:
            pools[share_of(f"split {_content(item)}", cut, "train")].append(item)
    contents: set[str] = set()
    by_id: dict[str, Prompt] = {}
    apart: dict[str, list[Prompt]] = {key: [] for key in order}
    for key in order:
        specs: dict[str, list[Mapping[str, Any]]] = {}
        for number, item in enumerate(pools[key]):
            content = _content(item)
            before = by_id.get(item.id)
            why = ""
            if content in contents:
                why = "a prompt that another split has"
            elif before is not None and _content(before) != content:
                raise ValueError(f"{name}: the id {item.id!r} names two different problems")
            elif before is not None and before != item:
                why = "a prompt that came before, with another answer"
            elif before or (not keep_repeats and item.spec in specs.setdefault(content, [])):
                why = "a prompt that came before"
            if why:
                left_out[f"{key}, {number}: {item.id}"] = why
                continue
            specs.setdefault(content, []).append(item.spec)
            by_id[item.id] = item
            apart[key].append(item)
        contents |= specs.keys()
    return apart


def _content(prompt: Prompt) -> str:
    """What makes two prompts the same problem: their text, up to white space."""
    if isinstance(prompt.text, str):
        return " ".join(prompt.text.split())
    return " ".join(" ".join(message["content"].split()) for message in prompt.text)


def as_messages(style: str, system: str, text: str) -> str | tuple[dict[str, str], ...]:
    """A prompt as chat messages or as plain text."""
    if style == "text":
        return f"{system}\n\n{text}" if system else text
    first = ({"role": "system", "content": system},) if system else ()
    return (*first, {"role": "user", "content": text})


def _text(row: Row, name: str) -> str:
    try:
        return plain_text(field(row, name))
    except ValueError as error:
        raise ValueError(f"field {name!r}: {error}") from error


class Absent(ValueError):
    """A template asks for a field that is null in this row."""


class _Filler(string.Formatter):
    """Fills templates; what is null has no place in a text, where it would read "None"."""

    def get_field(self, name: str, args: Any, fields: Any) -> Any:
        if "[" in name:
            value, first = super().get_field(name, args, fields)
        else:
            value, first = field(fields, name), name
        if isinstance(value, list | dict | tuple):
            raise ValueError(
                f"the field {name!r} holds {value!r:.60}, which is no text: name a field inside, "
                "as in {field.inside}, or a field with chat messages alone"
            )
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
