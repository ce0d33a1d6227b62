"""What every verifier is: a batch in, as many verdicts out, in the same order.

Wrong is a value, broken is an exception. A judging function returns a verdict for whatever a model
may write, garbage included; if it raises, the verifier itself is broken, the pair is tried again,
and what still raises is `unscored` (NaN): never a zero, never dropped silently.
"""

from __future__ import annotations

import inspect
import math
import os
import pkgutil
import re
import sys
import threading
import traceback
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeAlias

from bestofk.rewards.time_limit import CallTimeout, limited_call
from bestofk.types import Group, Prompt, Status, Trajectory, Verdict, status_of

Judgement: TypeAlias = Verdict | float | bool
"""What a judging function may return; NaN means that it could not tell."""
Judge: TypeAlias = Callable[[Prompt, str], Judgement]

_OURS = os.path.dirname(__file__) + os.sep
_PACKAGE = os.path.dirname(os.path.dirname(_OURS)) + os.sep
RETRIES = 2
"""How often a pair whose judging broke is tried again before it is `unscored`."""


class UnusableFunction(ValueError):
    """A reward function that no other completion and no retry would make usable."""


class WrongKind(TypeError):
    """A judging function returned what is no reward."""


class BatchVerifier(ABC):
    """Base of all verifiers: checks the batch, asks `judge_batch`, and checks its verdicts.

    Calling one is thread-safe; from asyncio, `await asyncio.to_thread(verifier, ...)`.
    """

    name: str = "verifier"
    is_learned: bool = False
    """Whether a model judges: what is paid by it learns to please it."""
    compares: bool = False
    """Whether it compares samples of a prompt with each other: all come in one batch."""
    reads_messages: bool = False
    """Whether a part of it takes the field `messages`: what was said with an environment."""

    needed: tuple[str, ...] = ()
    """Fields of a prompt's `spec` without which it cannot be judged."""

    @abstractmethod
    def judge_batch(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[Verdict]:
        """Judge texts that are known to be strings; the one method a subclass must write.

        Where it raises, the halves of the batch are judged apart, down to single pairs, and a pair
        that still raises is unscored; it does not affect the others.
        """

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raise for a prompt that lacks what this verifier needs; asked before the first sample."""
        for prompt in prompts:
            if missing := [name for name in self.needed if name not in prompt.spec]:
                in_data = "expected" in missing and prompt.spec
                raise ValueError(
                    f"verifier {self.name} needs {', '.join(missing)}, and the row of {prompt.id} "
                    f"has {', '.join(prompt.spec) or 'no fields'}"
                    + ("; task.options.answer names the field with the answer" if in_data else "")
                )

    def doubts(self, prompts: Sequence[Prompt]) -> dict[str, str]:
        """Ids of prompts that cannot be trusted although their references score 1.0, each with the
        reason: tests that pay for an answer that is none. `prepare` asks."""
        return {}

    def notes(self, prompts: Sequence[Prompt]) -> list[str]:
        """What a person should know of these prompts before a run, a line each."""
        return []

    def close(self) -> None:  # noqa: B027 (most verifiers have nothing to stop)
        """Stop workers, where there are any. A closed verifier starts new ones when called."""

    def __call__(
        self, prompts: Sequence[Prompt], completions: Sequence[str | None]
    ) -> list[Verdict]:
        """Verdicts in the order of `completions`; None (a reply without text) is unparsed."""
        if len(prompts) != len(completions):
            raise ValueError(
                f"a batch pairs each completion with its prompt, got {len(prompts)} prompts and "
                f"{len(completions)} completions"
            )
        for position, text in enumerate(completions):
            if text is not None and not isinstance(text, str):
                raise TypeError(
                    f"a completion is a string, got {type(text).__name__} at position {position}; "
                    "pass completion.text"
                )
        texts = ["" if text is None else text for text in completions]
        return self._judged(prompts, texts) if texts else []

    def _judged(
        self, prompts: Sequence[Prompt], texts: Sequence[str], attempt: int = 0
    ) -> list[Verdict]:
        """What `judge_batch` says, with what makes it raise narrowed down to pairs."""
        try:
            verdicts = self.judge_batch(prompts, texts)
        except (Exception, SystemExit) as error:
            _raise_if_hopeless(error)
            if len(texts) > 1:
                half = len(texts) // 2
                first = self._judged(prompts[:half], texts[:half])
                return first + self._judged(prompts[half:], texts[half:])
            if attempt < RETRIES:
                return self._judged(prompts, texts, attempt + 1)
            return [broken(self.name, prompts[0], error)]
        return checked(verdicts, len(texts), self.name)

    def __enter__(self) -> BatchVerifier:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PairVerifier(BatchVerifier):
    """A verifier made of one function that judges one (prompt, completion) pair.

    >>> shout = PairVerifier(lambda prompt, text: text.isupper())
    >>> [v.reward for v in shout([Prompt("a", "Shout.", "x")] * 2, ["HEY", "hey"])]
    [1.0, 0.0]
    """

    def __init__(
        self,
        judge: Judge,
        *,
        name: str = "",
        threads: int = 1,
        time_limit: float | None = None,
        needed: tuple[str, ...] = (),
    ) -> None:
        if threads < 1:
            raise ValueError(f"threads is at least 1, got {threads}")
        if time_limit is not None and not time_limit > 0:
            raise ValueError(f"time_limit is a positive number of seconds, got {time_limit}")
        self.judge = judge
        self.name = name or getattr(judge, "__name__", type(judge).__name__)
        self.threads, self.time_limit, self.needed = threads, time_limit, needed
        self._has_judged = False

    def judge_batch(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[Verdict]:
        if self.threads == 1 or len(texts) < 2:
            return list(map(self._judge_pair, prompts, texts))
        with ThreadPoolExecutor(min(self.threads, len(texts))) as pool:
            return list(pool.map(self._judge_pair, prompts, texts))

    def _judge_pair(self, prompt: Prompt, text: str, attempt: int = 0) -> Verdict:
        try:
            culprit = f"{self.name} on {prompt.id}"
            judgement = limited_call(self.judge, self.time_limit, culprit, prompt, text)
            verdict = as_verdict(judgement)
            self._has_judged = True
            return verdict
        except CallTimeout as error:  # it would take as long again
            return broken(self.name, prompt, error)
        except (Exception, SystemExit) as error:  # whatever broke is ours, not the model's
            _raise_if_hopeless(error)
            if attempt < RETRIES:
                return self._judge_pair(prompt, text, attempt + 1)
            if isinstance(error, WrongKind) and not self._has_judged:
                raise UnusableFunction(f"{self.name}: {error}") from error  # it never does
            return broken(self.name, prompt, error)


def _raise_if_hopeless(error: BaseException) -> None:
    """End a run at once where no pair is to blame: a machine without the sandbox that was asked
    for, a function that cannot be used."""
    from bestofk.sandbox import SandboxError

    if isinstance(error, SandboxError | UnusableFunction):
        raise error


def checked(verdicts: Any, count: int, name: str) -> list[Verdict]:
    """The verdicts, if they are that: as many as completions, each a `Verdict`.

    Anything else is a mistake in the verifier's code that no retry mends, so it is an error.
    """
    results = list(verdicts) if isinstance(verdicts, Iterable) else [verdicts]
    for position, verdict in enumerate(results):
        if not isinstance(verdict, Verdict):
            raise TypeError(
                f"{name} returned {type(verdict).__name__} at position {position}; a verifier "
                "returns Verdicts: bestofk.rewards.from_function makes them of floats"
            )
    if len(results) != count:
        raise RuntimeError(f"{name} returned {len(results)} verdicts for {count} completions")
    return results


def broken(name: str, prompt: Prompt, error: BaseException) -> Verdict:
    """The unscored verdict for a verifier that raised or took too long: where, and on what."""
    if isinstance(error, CallTimeout):
        return Verdict.unscored(f"{name} timed out on sample {prompt.id}: {error}"[:500])
    what = f"{type(error).__name__}: {error}"
    return Verdict.unscored(f"{name} raised on sample {prompt.id}{_place(error)}: {what}"[:500])


def _place(error: BaseException) -> str:
    """File and line where an exception left the code that is not ours; empty where it did not."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [place for place, each in enumerate(frames) if each.filename.startswith(_PACKAGE)]
    theirs = frames[max(ours, default=-1) + 1 :]
    theirs = theirs or [each for each in frames if not each.filename.startswith(_OURS)]
    return f" at {theirs[0].filename}:{theirs[0].lineno}" if theirs else ""


def as_verdict(judgement: Judgement) -> Verdict:
    """A verdict from what a judging function returned.

    >>> as_verdict(True).status, as_verdict(0.25).status, as_verdict(0.0).status
    ('correct', 'partial', 'incorrect')
    """
    if isinstance(judgement, Verdict):
        return judgement
    if inspect.isawaitable(judgement):
        raise UnusableFunction("a reward function returned a list of coroutines: gather them")
    try:
        if isinstance(judgement, str | bytes):
            raise TypeError("text is no number")
        reward = float(judgement)
    except (TypeError, ValueError) as error:
        raise WrongKind(
            "a judging function returns a number, a bool or a Verdict (NaN where it cannot tell), "
            f"got {judgement!r:.80}"
        ) from error
    if math.isnan(reward):
        return Verdict.unscored("the judging function returned NaN")
    return Verdict(reward, status_of(reward), passed=int(reward >= 1.0), total=1)


def right() -> Verdict:
    return Verdict(1.0, "correct", passed=1)


def wrong(detail: str, status: Status = "incorrect") -> Verdict:
    """Zero for a reason the model caused."""
    return Verdict(0.0, status, detail=detail)


def judge(groups: Sequence[Group], verifier: Callable[..., list[Verdict]]) -> list[list[Verdict]]:
    """Verdicts of whole groups, judged as one batch: one list per group.

    Trajectories that an environment has judged keep its verdict.
    """
    samples = [(group.prompt, each) for group in groups for each in group.trajectories]
    pairs = [
        (_with_messages(prompt, each, verifier), each.text)
        for prompt, each in samples
        if each.verdict is None
    ]
    prompts, texts = [prompt for prompt, _ in pairs], [text for _, text in pairs]
    judged = verifier(prompts, texts) if pairs else []
    verdicts = iter(checked(judged, len(pairs), _name_of(verifier)))
    answered = (
        with_answer(prompt, each.text, each.verdict or next(verdicts)) for prompt, each in samples
    )
    return [[next(answered) for _ in group.trajectories] for group in groups]


def _with_messages(prompt: Prompt, trajectory: Trajectory, verifier: Any) -> Prompt:
    """The prompt with the conversation as a field, for a function with a parameter `messages`."""
    if trajectory.conversation is None or not getattr(verifier, "reads_messages", False):
        return prompt
    return replace(prompt, spec={**prompt.spec, "messages": list(trajectory.conversation.messages)})


def with_answer(prompt: Prompt, text: str, verdict: Verdict) -> Verdict:
    """The verdict with the answer that a vote counts, where the verifier did not say it; one that
    the verifier says is empty is none."""
    from bestofk.rewards.maths.extract_answer import given_answer

    answer = given_answer(prompt, text, verdict) if verdict.answer is None else verdict.answer
    return (
        verdict if verdict.answer == (answer or None) else replace(verdict, answer=answer or None)
    )


def _name_of(verifier: Any) -> str:
    named = getattr(verifier, "name", None) or getattr(verifier, "__name__", None)
    return str(named or type(verifier).__name__)


AT_ONCE = 256
"""References that are judged in one batch."""


def refusals(verifier: Callable[..., list[Verdict]], prompts: Sequence[Prompt]) -> dict[str, str]:
    """Ids of prompts that must not be trained on, each with the reason.

    A prompt is proven when its reference completion scores exactly 1.0 with at least one test.
    """
    refused: dict[str, str] = {}
    ids: set[str] = set()
    for start in range(0, len(prompts), AT_ONCE):
        chunk = list(prompts[start : start + AT_ONCE])
        scored = verifier(chunk, [prompt.reference or "" for prompt in chunk])
        verdicts = checked(scored, len(chunk), _name_of(verifier))
        for prompt, verdict in zip(chunk, verdicts, strict=True):
            if prompt.id in ids:
                refused[prompt.id] = "the id occurs twice"
            elif prompt.reference is None:
                refused[prompt.id] = "no reference completion"
            elif verdict.status == "unscored":
                why = f"the reference could not be scored: {verdict.detail}"
                refused[prompt.id] = why + way_to_import(verdict.detail)
            elif verdict.total < 1:
                refused[prompt.id] = "no tests"
            elif verdict.reward != 1.0:
                why = f"the reference scores {verdict.reward:g} ({verdict.status}) {verdict.detail}"
                refused[prompt.id] = why.strip() + way_to_import(verdict.detail)
            ids.add(prompt.id)
    if isinstance(verifier, BatchVerifier):
        refused |= verifier.doubts([prompt for prompt in prompts if prompt.id not in refused])
    return refused


_MISSING = re.compile(r"No module named '(\w+)")


@lru_cache(1)
def _installed() -> frozenset[str]:
    """Installed packages by the names they are imported by, without the standard library."""
    return frozenset(module.name for module in pkgutil.iter_modules()) - sys.stdlib_module_names


def way_to_import(detail: str, *, by_reference: bool = True) -> str:
    """How programs get a package that one could not import; empty for the rest.

    Only a reference's package may still have to be installed. The name is the program's text: it
    is compared with the names of installed packages, and nothing else is done with it.
    """
    match = _MISSING.search(detail)
    if match is None or "packages = [" in detail:
        return ""
    if match[1] in _installed():
        return f'; let programs import it: packages = ["{match[1]}"] of the code verifier'
    if not by_reference:
        return ""
    return f"; pip install {match[1]}, and name it in `packages` of the code verifier"


def prepare(
    verifier: Callable[..., list[Verdict]], prompts: Sequence[Prompt], *, drop: bool = False
) -> list[Prompt]:
    """The prompts, all proven: every reference completion scores exactly 1.0.

    Raises ValueError naming every id that does not; `drop=True` leaves those prompts out instead.
    """
    refused = refusals(verifier, prompts)
    if refused and not drop:
        listed = "; ".join(f"{id}: {why}" for id, why in list(refused.items())[:20])
        more = f"; and {len(refused) - 20} more" if len(refused) > 20 else ""
        raise ValueError(
            f"every reference completion must score 1.0, {len(refused)} of {len(prompts)} do not: "
            f"{listed}{more}; repair or remove them, or pass drop=True to leave them out"
        )
    proven = [prompt for prompt in prompts if prompt.id not in refused]
    if not proven:
        raise ValueError(
            "no prompt is left to train on: none was given, or no reference completion scores 1.0"
        )
    return proven


_SAMPLE = re.compile(r" on sample \S+(?=:| at )")


class TooManyUnscored(RuntimeError):
    """The verifier fails too often for a run to go on."""


class UnscoredGuard:
    """Counts verdicts and stops a run when too many could not be scored.

    Raises `TooManyUnscored` as soon as more than `share * window` of the last `window` verdicts are
    unscored: a verifier that breaks late in a long run stops it as fast as one broken at the start.

    >>> guard = UnscoredGuard(share=0.01, window=100)
    >>> guard.check([Verdict.unscored("worker died")])
    >>> guard.unscored, guard.total
    (1, 1)
    """

    def __init__(self, share: float = 0.01, window: int = 1000) -> None:
        if not 0.0 <= share <= 1.0 or window < 1:
            raise ValueError(f"share lies in [0, 1] and window >= 1, got {share} and {window}")
        self.share, self.window = share, window
        self.total = self.unscored = 0
        self.reasons: Counter[str] = Counter()
        """How often each kind of failure occurred: its reason without the sample."""
        self._recent: deque[bool] = deque(maxlen=window)
        self._lock = threading.Lock()

    def check(self, verdicts: Iterable[Verdict]) -> None:
        """Count a batch; raise when the share is exceeded."""
        batch = list(verdicts)
        lost = [verdict for verdict in batch if verdict.status == "unscored"]
        with self._lock:
            self.total += len(batch)
            self.unscored += len(lost)
            self.reasons.update(_SAMPLE.sub("", verdict.detail) for verdict in lost)
            worst = 0
            for verdict in batch:
                self._recent.append(verdict.status == "unscored")
                if lost:
                    worst = max(worst, sum(self._recent))
            if worst > self.share * self.window:
                common = "; ".join(f"{n} times: {why}" for why, n in self.reasons.most_common(3))
                raise TooManyUnscored(
                    f"{worst} of the last {min(self.total, self.window)} verdicts could not be "
                    f"scored, more than {self.share:.1%} of {self.window}; {common}; the last "
                    f"reason: {lost[-1].detail}; repair what fails, leave out a problem where it "
                    "must fail, or raise the share knowingly (in a run by "
                    "task.advanced.unscored_share)"
                )
