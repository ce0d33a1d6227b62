"""The answer that a completion gives, in one spelling: for votes, logs and counts of answers."""

from __future__ import annotations

from bestofk.rewards.extract import answer_of
from bestofk.rewards.maths.extract_answer import MAX_ANSWER, extract
from bestofk.rewards.maths.plain_form import plain
from bestofk.types import Prompt, Verdict


def given_answer(prompt: Prompt, text: str, verdict: Verdict) -> str | None:
    r"""As the prompt asked for it: between tags, or the whole text; for an `expected` answer also
    where mathematics writes it (a box, `####`, "Answer:"), without typography. None without one,
    and where the verifier found none in such places.

    >>> given_answer(
    ...     Prompt("p", "", "t", {"expected": "5"}), r"so \boxed{\dfrac{1}{2}}",
    ...     Verdict(0.0, "incorrect"),
    ... )
    '\\frac{1}{2}'
    """
    answer = answer_of(prompt, text)
    if not answer and "expected" in prompt.spec and verdict.status != "unparsed":
        answer = extract(text)
        if answer and len(answer) <= MAX_ANSWER:
            answer = plain(answer)
    return answer or None
