"""`bestofk objectives`: every objective with its formula, claim and source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from bestofk.cli._options import VerbOptions, argument, parsed
from bestofk.cli._wrapping import wrapped
from bestofk.objectives.catalog import ALIASES, CATALOG, Entry
from bestofk.objectives.grammar import parse


def rows() -> Iterator[tuple[str, Entry]]:
    """(string as a user would write it, entry) for everything in the catalog."""
    for name, variants in CATALOG.items():
        for variant, entry in variants.items():
            text = name.replace("M", "2") + ("@8" if entry.takes_k else "")
            yield text + (f":{variant}" if variant else ""), entry


def show(text: str, entry: Entry, k: int = 8) -> str:
    needs = [*entry.needs, *(f"{name}=" for name, value in entry.options.items() if value is ...)]
    facts = [f"needs n ≥ {entry.least(k if entry.takes_k else 1)}"]
    facts += ["0/1 rewards"] if entry.zero_one else ["real rewards"]
    facts += [entry.claim]
    facts += ["exact off policy"] if entry.baseline else []
    facts += [f"needs {', '.join(needs)}"] if needs else []
    lines = [f"A_i = {entry.formula}", entry.statement, "; ".join(facts), entry.source]
    return "\n    ".join([text, *lines])


def listing() -> str:
    head = (
        "Weights A_i of a group's n samples, in the mean convention: (1/n) Σ A_i ∇log π(y_i).\n"
        "ρ_k(B) estimates max@k from the group; q_i averages the best over the k-subsets with "
        "sample i.\n"
    )
    aliases = ", ".join(f"{name} = {meaning}" for name, meaning in ALIASES.items())
    tail = (
        f"\nAliases: {aliases} (with its k). top2, bottom2: any m. L-statistics: lstat@k with "
        "coefficients=.\nCombine: max@1+8, max@8+grpo (mixtures), max@8/60%/mean (switch), "
        "max@8..1 (anneal)."
    )
    return "\n".join([head, *(show(text, entry) for text, entry in rows()), tail])


def one(text: str) -> str:
    """What a string means, stage by stage."""
    lines = []
    for stage in parse(text):
        for term in stage.terms:
            share = f" × {term.weight:g}" if term.weight != 1 else ""
            lines.append(f"from {stage.start:.0%} of the run{share}:")
            lines.append(show(term.text, term.entry, term.k))
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class ObjectivesOptions(VerbOptions):
    """List every objective with formula, claim and source, or explain one string."""

    examples: ClassVar = (
        "bestofk objectives",
        "bestofk objectives max@8:loo-1",
        "bestofk objectives max@8/60%/mean",
    )

    objective: str = argument("[OBJECTIVE]", default="")
    """Objective to explain; all of them if left out."""


def as_json(text: str, entry: Entry) -> dict[str, Any]:
    return {
        "objective": text,
        "formula": entry.formula,
        "claim": entry.statement,
        "source": entry.source,
        "gradient": entry.claim,
        "unbiased": entry.claim == "exact",
        "exact_off_policy": entry.baseline is not None,
    }


def main(argv: list[str]) -> int:
    arguments = parsed(ObjectivesOptions, argv, "bestofk objectives")
    if not arguments.json:
        print(wrapped(one(arguments.objective) if arguments.objective else listing()))
        return 0
    if arguments.objective:
        table = [
            {"from": stage.start, "weight": term.weight, **as_json(term.text, term.entry)}
            for stage in parse(arguments.objective)
            for term in stage.terms
        ]
    else:
        table = [as_json(text, entry) for text, entry in rows()]
    print(json.dumps(table, ensure_ascii=False, indent=2))
    return 0
