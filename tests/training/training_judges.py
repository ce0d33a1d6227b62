"""Judging functions for small runs: rewards that a random policy sometimes gets."""


def digits(prompt, text):
    """The share of digits in the completion: every batch has signal."""
    return sum(character.isdigit() for character in text) / len(text) if text else 0.0
