"""Judging functions for small runs: rewards that a random policy sometimes gets."""

import time


def digits(prompt, text):
    """The share of digits in the completion: every batch has signal."""
    return sum(character.isdigit() for character in text) / len(text) if text else 0.0


def broken(prompt, text):
    """A verifier that always breaks."""
    raise RuntimeError("no such host")


def sometimes(prompt, text):
    """A verifier that breaks on some completions, the same ones each time."""
    if sum(map(ord, text)) % 5 == 0:
        raise RuntimeError("no such host")
    return digits(prompt, text)


def seldom(prompt, text):
    """A reward on a part of the prompts alone: some batches have no signal at all."""
    return digits(prompt, text) if sum(map(ord, prompt.id)) % 3 == 0 else 0.0


def endless(prompt, text):
    """A verifier that says so and then never answers."""
    print("judging now", flush=True)
    while True:
        time.sleep(3600)


def signed(prompt, text):
    """-1 and 1, as many reward functions have it."""
    return 1.0 if digits(prompt, text) > 0.5 else -1.0


def counted(prompt, text):
    """A sum: the number of digits."""
    return float(sum(character.isdigit() for character in text))
