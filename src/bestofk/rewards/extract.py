"""Where the answer is in a completion. Linear in the length of the text, whatever the text."""

from __future__ import annotations

from bestofk.types import Prompt


def final_text(text: str) -> str:
    """What follows the thinking; nothing when the thinking never ends.

    >>> final_text("<think>2 or 3?</think> 3")
    ' 3'
    >>> final_text("<think>2 or 3? it must be")
    ''
    """
    start, end = text.rfind("<think>"), text.rfind("</think>")
    if start > end:
        return ""
    return text[end + len("</think>") :] if end >= 0 else text


def tagged(text: str, tag: str = "answer") -> str | None:
    """The inside of the last tag, or None where there is none or the last is never closed.

    >>> tagged("<answer>1</answer> no, <answer>2</answer>")
    '2'
    >>> tagged("<answer>1</answer> no, <answer>2")
    """
    opened, closed = f"<{tag}>", f"</{tag}>"
    start = text.rfind(opened)
    end = text.find(closed, start)
    return None if min(start, end) < 0 else text[start + len(opened) : end]


def answer_of(prompt: Prompt, text: str) -> str | None:
    """The answer part of a completion, as the prompt asked for it.

    `spec["answer"]` is "tag" (the last `<answer>...</answer>` after the thinking, the default) or
    "whole" (the completion is the answer and nothing else, for compact prompts).
    """
    if prompt.spec.get("answer", "tag") == "whole":
        return text.strip()
    inside = tagged(final_text(text))
    return None if inside is None else inside.strip()
