"""Judging functions for small runs: rewards that a random policy sometimes gets."""

import time
from dataclasses import replace

from bestofk.rewards.base import as_verdict
from bestofk.types import Verdict, status_of


def digits(prompt, completion):
    """The share of digits in the completion: every batch has signal."""
    return sum(map(str.isdigit, completion)) / len(completion) if completion else 0.0


def any_digit(prompt, completion):
    """0 or 1."""
    return any(map(str.isdigit, completion))


def broken(prompt, completion):
    """A verifier that always breaks."""
    raise RuntimeError("no such host")


def sometimes(prompt, completion):
    """A verifier that breaks on some completions, the same ones each time."""
    if sum(map(ord, completion)) % 5 == 0:
        raise RuntimeError("no such host")
    return digits(prompt, completion)


def seldom(prompt, completion):
    """A reward on a part of the prompts alone: some batches have no signal at all."""
    return digits(prompt, completion) if sum(map(ord, prompt.id)) % 3 == 0 else 0.0


def endless(prompt, completion):
    """A verifier that says so and then never answers."""
    print("judging now", flush=True)
    while True:
        time.sleep(3600)


def signed(prompt, completion):
    """-1 and 1, as many reward functions have it."""
    return 1.0 if digits(prompt, completion) > 0.5 else -1.0


def counted(prompt, completion):
    """A sum: the number of digits."""
    return float(sum(character.isdigit() for character in completion))


def half(prompt, completion):
    """A reward that does not look at the answer."""
    return 0.5


def size(prompt, completion):
    """What chooses, not what pays: the number of different characters, which often ties."""
    return float(len(set(completion)))


def both(prompt, completion):
    """A reward and a score of one's own; no score where the completion is short."""
    reward = digits(prompt, completion)
    chosen = None if len(completion) < 3 else -float(completion.count("1"))
    return Verdict(reward, status_of(reward), score=chosen)


class Asks:
    """An environment of three turns: each ends with a digit, where its text is cut."""

    def reset(self):
        self.heard = []

    def __call__(self, text):
        self.heard.append(text)
        return f"{len(text)}:" if len(self.heard) < 3 else None


def last_character(prompt, completion):
    """Right where the last character is a digit, which is the answer; no answer without one."""
    last = completion[-1:]
    is_digit = last.isdigit()
    return replace(as_verdict(is_digit), answer=last if is_digit or last in "+-*" else "")


def worse_of_two(rewards, scores, answers):
    """What two samples are worth where the worse one counts."""
    return float(min(rewards))
