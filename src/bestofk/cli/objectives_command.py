"""`bestofk objectives`: which to use when; every one with its formula, claim and source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, ClassVar

from bestofk.cli._options import VerbOptions, argument, parsed
from bestofk.cli._terminal import wrapped
from bestofk.objectives import objective
from bestofk.objectives.catalog import ALIASES, CATALOG, Entry
from bestofk.objectives.grammar import parse

# objective: when to use it, in a line of a terminal
USUAL = {
    "mean": "one sample is used: the plain policy gradient, RLOO",
    "grpo": "one sample is used: the usual baseline",
    "max@8": "a verifier picks the best of 8; graded rewards too",
    "pass@8": "the same, rewards 0 and 1",
    "passk-training@8": "best of 8 or more, as published; little pass@1 gain",
    "max@1+4+16": "one sample now, several later; a good first choice",
    "maxrl": "the same, rewards 0 and 1",
    "select@8": "a score that errs picks one of 8; pass scores=",
    "pass^8": "all of 8 must pass",
    "max@1+16+64 1:2:4": "no loss at any k; n above 64, loss.kl = 0.01",
    "max@8..1": "k falls over the run: explore first, pass@1 last",
    "max@8/60%/mean": "max@8 first, the mean from 60% of the run on",
    "top2@8": "the mean of the best two of 8 is what counts",
    "min@8": "the worst of 8 is what counts",
}


def overview() -> str:
    """One screen: what to use when."""
    lines = [f"{'objective':<19}{'use when':<52}gradient"]
    for text, use in USUAL.items():
        lines.append(f"{text:<19}{use:<52}{objective(text).claim}")
    return "\n".join(
        [
            *lines,
            "",
            "exact: unbiased for the objective. 8 stands for any k; n is larger than k.",
            "Quote a string with a space. Weights 1:2:4 multiply the terms of a mixture.",
            "",
            "bestofk objectives OBJECTIVE   formula, claim, source and least n of one",
            "bestofk objectives --all       every objective and variant",
        ]
    )


def rows() -> Iterator[tuple[str, Entry]]:
    """(string as a user would write it, entry) for everything in the catalog."""
    for name, variants in CATALOG.items():
        for variant, entry in variants.items():
            text = name.replace("M", "2") + ("@8" if entry.takes_k else "")
            yield text + (f":{variant}" if variant else ""), entry


def show(text: str, entry: Entry, k: int = 8) -> str:
    needs = [*entry.inputs, *(f"{name}=" for name, value in entry.options.items() if value is ...)]
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
        "sample i. U_k(B) is the mean over k-subsets of what select@k, maj@k, … get, and q_i the "
        "same with sample i.\n"
    )
    aliases = ", ".join(f"{name} = {meaning}" for name, meaning in ALIASES.items())
    tail = (
        f"\nAliases: {aliases} (with its k), pass^8 = all@8. top2, bottom2, atleast2: any m. "
        "L-statistics: lstat@k with coefficients=.\n"
        "A rule takes a baseline too: maj@8:weighted:ties-wrong:loo-1.\n"
        "Combine: max@1+8, max@8+grpo (mixtures), max@1+8 1:2 (with weights), "
        "max@8/60%/mean (switch), max@8..1 (anneal)."
    )
    shown = (show(text, entry) for text, entry in rows() if text.count(":") < 2)
    return "\n".join([head, *shown, tail])


def one(text: str) -> str:
    """What a string means, stage by stage."""
    lines = []
    for stage in parse(text):
        for term in stage.terms:
            share = f" × {term.weight:g}" if term.weight != 1 else ""
            lines.append(f"from {stage.start:.0%} of the run{share}:")
            lines.append(show(term.text, term.entry, term.k))
    return "\n".join(lines)


class ObjectivesOptions(VerbOptions):
    """Which objective to use when, every one, or what one string means."""

    examples: ClassVar = (
        "bestofk objectives",
        "bestofk objectives max@8:loo-1",
        "bestofk objectives max@8/60%/mean",
    )

    objective: str = argument("[OBJECTIVE]", default="")
    """Objective to explain; the usual ones if left out."""
    all: bool = False
    """Every objective and variant with formula, claim and source."""


def as_json(text: str, entry: Entry) -> dict[str, Any]:
    return {
        "objective": text,
        "formula": entry.formula,
        "claim": entry.statement,
        "source": entry.source,
        "gradient": entry.claim,
        "exact_off_policy": entry.baseline is not None,
    }


def main(argv: list[str]) -> int:
    arguments = parsed(ObjectivesOptions, argv, "bestofk objectives")
    if not arguments.as_json:
        text = listing() if arguments.all else overview()
        print(wrapped(one(arguments.objective) if arguments.objective else text))
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
