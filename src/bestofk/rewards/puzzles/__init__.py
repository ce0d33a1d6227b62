"""Puzzles: one module a puzzle, each with the function `verifier`."""
