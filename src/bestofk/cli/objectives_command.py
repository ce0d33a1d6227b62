"""`bestofk objectives`: every objective with its formula, claim and source."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Iterator

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


def main(argv: list[str]) -> int:
    import tyro

    def objectives(objective: str | None = None, /, json: bool = False) -> None:
        """List every objective, or explain one string.

        Args:
            objective: a string such as max@8:loo-1 or max@8/60%/mean; all of them if left out.
            json: print JSON instead of text.
        """
        if objective is not None:
            print(one(objective))
        elif json:
            table = [
                {
                    "objective": text,
                    "formula": entry.formula,
                    "claim": entry.statement,
                    "source": entry.source,
                    "gradient": entry.claim,
                    "unbiased": entry.claim == "exact",
                    "exact_off_policy": entry.baseline is not None,
                }
                for text, entry in rows()
            ]
            print(jsonlib.dumps(table, ensure_ascii=False, indent=2))
        else:
            print(listing())

    tyro.cli(objectives, args=argv, prog="bestofk objectives")
    return 0
