"""What every sampler takes and gives: parameters in, groups out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from bestofk.types import Group, Prompt


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How completions are drawn. The defaults draw from the model's own distribution."""

    n: int = 16
    """Completions per prompt."""
    max_new_tokens: int = 256
    """A completion that reaches it without ending has finish reason "length"."""
    temperature: float = 1.0
    """Logits are divided by it. The learner must use the same; 0 takes the most likely token."""
    top_p: float = 1.0
    """Keep the smallest set of tokens that holds this probability; 1 keeps all."""
    top_k: int = 0
    """Keep this many most likely tokens; 0 keeps all."""
    stop: tuple[str, ...] = ()
    """A completion ends where its text first holds one of these. Its `tokens` keep the stop string
    (they are what was sampled); its `text` ends before it."""

    def __post_init__(self) -> None:
        if self.n < 1 or self.max_new_tokens < 1:
            raise ValueError(
                "sampling needs n >= 1 and max_new_tokens >= 1, "
                f"got n={self.n}, max_new_tokens={self.max_new_tokens}"
            )
        if self.temperature < 0.0:
            raise ValueError(f"temperature is 0 or more, got {self.temperature}")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p lies in (0, 1], got {self.top_p}; 1 keeps every token")
        if self.top_k < 0:
            raise ValueError(f"top_k is 0 (off) or more, got {self.top_k}")
        if any(not stop for stop in self.stop):
            raise ValueError("a stop string holds at least one character, got ''")

    @property
    def truncated(self) -> bool:
        """Whether some tokens cannot be drawn (top-p, top-k, or temperature 0).

        Importance weights π_θ/π_old are wrong then unless π_old is the truncated distribution, so
        exact off-policy weights must refuse such samples or take the sampler's log-probs (which are
        those of the truncated distribution) for π_old. The latter corrects everything but the mass
        of the tokens that could not be drawn.
        """
        return self.top_p < 1.0 or self.top_k > 0 or self.temperature == 0.0


class Sampler(Protocol):
    """A policy that answers prompts with groups."""

    def sample(self, prompts: Sequence[Prompt], *, seed: int, params: Sampling) -> list[Group]:
        """One group of `params.n` completions per prompt, in the order of the prompts.

        Each completion has its token ids (the end-of-sequence token included when drawn), the
        log-probability of each under the distribution it was drawn from (temperature and truncation
        included), and why it ended. `Group.prompt_tokens` are the ids the model saw.

        The draws of a prompt depend on `seed` and the prompt's id alone, not on which prompts are
        sampled beside it: one process and two draw the same. A prompt id that occurs twice in a
        call gets different draws. The same call gives the same groups; take a new seed every time.
        """
        ...


@runtime_checkable
class WeightHolder(Sampler, Protocol):
    """A sampler with a copy of the weights of its own, which must be told when they change."""

    version: int | None
    """Of the weights it holds, as the last `update` said; None when it has none of ours."""
    shared: bool
    """Whether all processes of a run sample from one: then one of them updates it."""

    def update(self, weights: Iterable[tuple[str, Any]], *, version: int = 0) -> None:
        """Take these tensors, by their names on disk, and forget what the old ones computed."""
        ...

    def sleep(self) -> None:
        """Free what memory it can until the next `update`."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...
