"""What every sampler takes and gives: parameters in, groups out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Protocol, runtime_checkable

from pydantic import Field

from bestofk.sections import Count, FromList, NaturalNumber, NonNegative, Section
from bestofk.types import Group, Prompt


class Sampling(Section):
    """How completions are drawn. The defaults draw from the model's own distribution."""

    samples_per_prompt: Count = 32
    """n, the size of a group. More samples lower the variance of every estimator; most objectives
    need more than k."""
    max_new_tokens: Count = 256
    """A completion that reaches this length without ending has finish reason "length"."""
    temperature: NonNegative = 1.0
    """Logits are divided by it; the learner uses the same one. 0 takes the most likely token."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Keep the smallest set of tokens that holds this probability; 1 keeps all."""
    top_k: NaturalNumber = 0
    """Keep this many most likely tokens; 0 keeps all."""
    stop: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], FromList] = ()
    """A completion ends where its text first holds one of these. Its `tokens` keep the stop string
    (they are what was sampled); its `text` ends before it."""

    @property
    def n(self) -> int:
        """Completions per prompt."""
        return self.samples_per_prompt

    @property
    def truncated(self) -> bool:
        """Whether some tokens cannot be drawn (top-p, top-k, or temperature 0).

        Importance weights π_θ/π_old are wrong then unless π_old is the truncated distribution, so
        exact off-policy weights need untruncated samples, or the sampler's log-probs (which are
        those of the truncated distribution) for π_old. The latter corrects everything but the mass
        of the tokens that could not be drawn.
        """
        return self.top_p < 1.0 or self.top_k > 0 or self.temperature == 0.0


class ServerLost(RuntimeError):
    """Nobody answers any more where the server was that samples were drawn from."""


class Sampler(Protocol):
    """A policy that answers prompts with groups."""

    def sample(self, prompts: Sequence[Prompt], *, seed: int, sampling: Sampling) -> list[Group]:
        """One group of `sampling.n` trajectories per prompt, in the order of the prompts.

        Each has its token ids (the end-of-sequence token included when drawn), the
        log-probability of each under the distribution it was drawn from (temperature and truncation
        included), and why it ended. `Group.prompt_tokens` are the ids the model saw.

        The draws of a prompt depend on `seed` and the prompt's id alone, not on which prompts are
        sampled beside it: one process and two draw the same. A prompt id that occurs twice in a
        call gets different draws. The same call gives the same groups; take a new seed every time.
        """
        ...


@runtime_checkable
class WeightHolder(Sampler, Protocol):
    """A sampler with a copy of the weights of its own, which must be told when they change: a
    server. All processes of a run sample from it, and one of them updates it."""

    version: int | None
    """Of the weights it holds, as the last `update` said; None when it has none of ours."""

    def update(self, weights: Iterable[tuple[str, Any]], *, version: int = 0) -> None:
        """Take these tensors, by their names on disk, and forget what the old ones computed."""
        ...

    def wait(self) -> None:
        """Until it answers again after a `ServerLost`."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...
