"""How long a trajectory with an environment may become."""

from __future__ import annotations

from bestofk.sections import Count, Positive, Section


class TurnLimits(Section):
    """Limits of a trajectory, beside sampling.max_new_tokens, which bounds all its tokens."""

    turns: Count = 8
    """Messages that the model writes in a trajectory, at most."""
    turn_tokens: Count | None = None
    """Tokens of one message of the model, at most; a message cut off ends the trajectory."""
    own_tokens: Count | None = None
    """Tokens that the model writes in a trajectory, at most, all its messages together; replies do
    not count."""
    tool_seconds: Positive = 30.0
    """Time for the environment's answer to one message, all its tool calls together; also for
    `reset` and `get_reward`. A tool that takes longer is an error message to the model."""
