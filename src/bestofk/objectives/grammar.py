"""The string grammar of objectives, parsed into terms and stages.

    objective := stage ( "/" percent "%/" stage )*         switch: max@8/60%/mean
    stage     := part ( "+" part )* [ shares ]              mixture: max@8+grpo
    shares    := share ( ":" share )+                       weights: max@1+8 1:2
    part      := name [ "@" ks ] [ ":" variant ]*           a rule, a baseline: maj@8:weighted:loo-1
    ks        := k | k ".." k | k ( "+" k )*                anneal: max@8..1    mixture: max@1+8
    name      := a name of the catalog, or top<m>, bottom<m>, atleast<m>

pass^8 is all@8: all of 8 pass.

No character in it means anything to a shell or to Hydra, but the space before shares.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bestofk.messages import choices, unknown
from bestofk.procedures.estimates import named_coefficients

from .catalog import ALIASES, CATALOG, Entry

_PARTS = re.compile(r"(?P<name>[a-z][a-z0-9-]*)(@(?P<ks>[^:]*))?(:(?P<variant>.*))?", re.DOTALL)
_SHARES = re.compile(r"(.*?)(?:\s+(\d+(?:\.\d+)?(?::\d+(?:\.\d+)?)+))?", re.DOTALL)
_TOP = re.compile(r"^(top|bottom|atleast)(\d+)$")


@dataclass(frozen=True)
class Term:
    """One advantage function at one k, with its share in a mixture."""

    text: str
    entry: Entry
    k: int
    weight: float = 1.0
    coefficients: tuple[float, ...] | None = None

    @property
    def least(self) -> int:
        return self.entry.least(self.k)

    @property
    def metric(self) -> str:
        """What `bestofk eval` measures for it: "max@k" of max@8:loo-1, "atleast2@k", "pass^k"."""
        name = self.text.partition("@")[0]
        if name == "all":
            return "pass^k"
        return f"{name}@k" if name.startswith("atleast") else self.entry.procedure.metric


@dataclass(frozen=True)
class Stage:
    """What is trained from a share of the run on."""

    start: float
    terms: tuple[Term, ...]


def names() -> list[str]:
    """Every name a user may write, as they would write it."""
    plain = [name for name in CATALOG if not name.endswith("M")]
    return [*plain, "top<m>", "bottom<m>", "atleast<m>", "pass^<k>", *ALIASES]


def parse(text: str) -> tuple[Stage, ...]:
    """Stages of an objective string, or an error that says what to write instead."""
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"an objective is a string such as 'max@8', got {text!r}")
    pieces = [piece.strip() for piece in text.strip().lower().split("/")]
    if len(pieces) % 2 == 0:
        raise ValueError(f"cannot read {text!r}: a switch is written max@8/60%/mean")
    starts = [0.0] + [_share(piece, text) for piece in pieces[1::2]]
    if any(later <= earlier for earlier, later in zip(starts, starts[1:])):
        raise ValueError(f"the switches of {text!r} must come in increasing order")
    ends = [*starts[1:], 1.0]
    stages: list[Stage] = []
    for piece, start, end in zip(pieces[::2], starts, ends):
        stages.extend(_anneal(piece, start, end))
    return tuple(stages)


def _share(piece: str, text: str) -> float:
    result = re.fullmatch(r"(\d+(?:\.\d+)?)%", piece)
    if not result or not 0 < float(result[1]) < 100:
        raise ValueError(
            f"cannot read {piece!r} in {text!r}: the share of the run after which the objective "
            "changes is a percentage between 0% and 100%, as in max@8/60%/mean"
        )
    return float(result[1]) / 100


def _anneal(piece: str, start: float, end: float) -> list[Stage]:
    """One stage, or one per k when k is annealed: every k for an equal share of the time."""
    result = re.fullmatch(r"([^@:]+)@(\d+)\.\.(\d+)((?::.*)?)", piece)
    if not result:
        return [Stage(start, _terms(piece))]
    name, first, last, rest = result[1], int(result[2]), int(result[3]), result[4]
    step = 1 if last >= first else -1
    ks = range(first, last + step, step)
    width = (end - start) / len(ks)
    return [Stage(start + i * width, _terms(f"{name}@{k}{rest}")) for i, k in enumerate(ks)]


def _terms(piece: str) -> tuple[Term, ...]:
    """The terms of a mixture, with equal shares unless stated, or the one of a plain objective."""
    piece, shares = _SHARES.fullmatch(piece).groups()  # type: ignore[union-attr]
    parts = re.split(r"\+(?=[a-z])", piece)
    terms = [term for part in parts for term in _part(part.strip())]
    texts = [term.text for term in terms]
    if len(set(texts)) < len(texts):
        raise ValueError(f"a mixture names each objective once, got {piece!r}")
    weights = [1.0 / len(terms)] * len(terms)
    if shares:
        weights = [float(share) for share in shares.split(":")]
    if len(weights) != len(terms):
        raise ValueError(f"{piece!r} has {len(terms)} terms and {len(weights)} shares, {shares}")
    return tuple(replace(term, weight=weight) for term, weight in zip(terms, weights))


def _part(piece: str) -> tuple[Term, ...]:
    """The terms of one name: one for each k."""
    result = _PARTS.fullmatch(piece.replace("pass^", "all@"))
    if not result:
        raise ValueError(f"cannot read objective {piece!r}: write name[@k][:variant], as in max@8")
    name, ks, variant = result["name"], result["ks"], result["variant"] or ""
    variant = ":".join(sorted(variant.split(":"), reverse=True))  # weighted, ties-…, a baseline
    if name in ALIASES:
        name, _, fixed = ALIASES[name].partition(":")
        if fixed and variant not in ("", fixed):
            raise ValueError(f"{result['name']} is max with variant {fixed!r}; it has no other")
        variant = fixed or variant
    entry = _find(name, variant)
    named = name in ("median", "min", "all") or _TOP.fullmatch(name)
    numbers = _numbers(piece, name, ks, entry)
    label = f":{variant}" if variant else ""
    return tuple(
        Term(
            f"{name}@{k}{label}" if entry.takes_k else name + label,
            entry,
            k,
            coefficients=named_coefficients(name, k) if named else None,
        )
        for k in numbers
    )


def _find(name: str, variant: str) -> Entry:
    key = _TOP.sub(r"\1M", name)
    if key not in CATALOG:
        raise unknown("objective", name, names(), cutoff=0.5)
    variants = CATALOG[key]
    if variant not in variants:
        have = [known for known in variants if known and ":" not in known]
        if not have:
            raise ValueError(f"objective {name} has no variants, got {variant!r}")
        raise ValueError(f"objective {name} has no variant {variant!r}; {choices(variant, have)}")
    return variants[variant]


def _numbers(piece: str, name: str, ks: str | None, entry: Entry) -> Sequence[int]:
    if not entry.takes_k:
        if ks is not None:
            raise ValueError(f"objective {name} takes no k, got {piece!r}")
        return [1]
    if ks is None:
        raise ValueError(f"objective {name} needs its k: write {name}@8")
    if not re.fullmatch(r"\d+(\+\d+)*", ks):
        raise ValueError(
            f"cannot read k in {piece!r}: write {name}@8, a mixture {name}@1+8, "
            f"or an annealing {name}@8..1"
        )
    numbers = [int(k) for k in ks.split("+")]
    if min(numbers) < 1:
        raise ValueError(f"k must be at least 1, got {piece!r}")
    return numbers


def requirement(term: Term, n: int | None = None) -> tuple[str, str]:
    """The rule about samples per prompt, and the reason with the way out for n of them."""
    least, k, rule = term.least, term.k, f":{term.entry.procedure.rule}".rstrip(":")
    amount = f"more than {k}" if least == k + 1 and term.entry.takes_k else f"at least {least}"
    need = f"objective {term.text} needs {amount} samples per prompt"
    why = f": {term.entry.why}"
    name = term.text.partition("@")[0]
    if "loo-1" in CATALOG.get(name, ()) and least == k + 1:
        if k == 1:
            return need, f"{why}; with 1 sample use {name}@1{rule}:none, or draw more"
        if n is None or n >= k:
            ways = (f"{name}@{k}{rule}:{each}" for each in ("loo-1", "none"))
            return need, f"{why}; with {k} samples use {' or '.join(ways)}"
        return need, f"{why}; {_smaller(name, n, rule)}"
    if term.entry.takes_k and n is not None and n < k:
        why += f"; draw at least {least}, or use a k of at most {max(1, n - least + k)}"
    return need, why


def _smaller(name: str, n: int, rule: str) -> str:
    if n == 0:
        return "draw more"
    fits = f"{name}@{n}{rule}:loo-1" if n > 1 else f"{name}@1{rule}:none"
    less = f"{name}@{n - 1}{rule} or " if n > 1 else ""
    return f"with {n} samples use {less}{fits}, or draw more"
