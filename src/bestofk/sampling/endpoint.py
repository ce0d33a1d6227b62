"""Samples from any OpenAI-compatible endpoint: retried, rate-limited, capped, and never paid twice.

`draw` takes what is still to be sampled and hands over each sample the moment it arrives; keeping
it is the caller's business, so a killed run resumes from what was kept. A request that fails is
repeated with growing pauses; when that does not help, the last cause is raised. Repeats do not
count against the cap. The key is read from the environment, sent in one header, and cut out of
every message.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from bestofk.sampling.openai_wire import (
    NO_CONNECTION,
    TOO_SLOW,
    backoff,
    logprobs_of,
    reason_of,
    request_body,
    retry_after,
    sample_seed,
    text_of,
)
from bestofk.sampling.sampler import Sampling
from bestofk.types import Prompt

FATAL = frozenset({400, 401, 403, 404, 405, 413, 415, 422})
"""Answers that a repeat will not change."""
PATIENCE = 20.0
"""Seconds without a sample before that is reported."""
CONNECTING = 3
"""Tries where no connection was ever made."""


class EndpointError(RuntimeError):
    """The endpoint rejected a request, or kept failing; samples drawn so far are kept."""


class CapReached(RuntimeError):
    """The stated cap on requests or tokens was reached; samples drawn so far are kept."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where to ask, and how hard."""

    base_url: str
    """Up to and including the version, such as http://localhost:8000/v1."""
    model: str
    key_variable: str = "OPENAI_API_KEY"
    """Environment variable that holds the key; unset means none is sent."""
    api: Literal["chat", "completions"] = "chat"
    """`completions` sends text as it is, for base models."""
    concurrency: int = 8
    """Requests in flight at once."""
    per_request: int = 1
    """Samples asked for in one request: the prompt is paid for once, where the server knows `n`."""
    retries: int = 8
    """Times a request is repeated after 429, 5xx, a cut connection or an invalid answer."""
    timeout: float = 600.0
    """Seconds without an answer before a request counts as cut."""
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of every request, such as a provider's own options."""
    logprobs: bool = False
    """Ask for log-probabilities, where the endpoint gives them."""

    def __post_init__(self) -> None:
        if not self.base_url.startswith(("http://", "https://")):
            raise ValueError(f"an endpoint starts with http:// or https://, got {self.base_url!r}")
        for name in ("concurrency", "per_request"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, got {getattr(self, name)}")
        if self.retries < 0 or self.timeout <= 0:
            raise ValueError(f"retries >= 0 and timeout > 0, got {self.retries} and {self.timeout}")


@dataclass(frozen=True)
class SamplesToDraw:
    """Samples still to be drawn for one prompt."""

    prompt: Prompt
    samples: tuple[int, ...]
    """Their numbers."""


@dataclass(frozen=True)
class EndpointSample:
    """One sample as it came."""

    prompt: Prompt
    sample: int
    text: str
    finish_reason: str
    n_tokens: int | None
    logprob_sum: float | None
    seed: int
    """Of its request."""


@dataclass
class Usage:
    """What a run has cost so far."""

    requests: int = 0
    """Sent, repeats not included."""
    samples: int = 0
    tokens: int = 0
    """Prompt and completion, as the endpoint counts them; else the most a completion can be."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    uncounted: int = 0
    """Answers of which the endpoint did not say how many tokens they have."""
    retried: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    """Why requests were repeated, and how often."""


@dataclass(frozen=True)
class Cap:
    """The most a run may cost."""

    requests: int
    tokens: int


def draw(
    endpoint: Endpoint,
    wanted: Iterable[SamplesToDraw],
    sampling: Sampling,
    keep: Callable[[EndpointSample], None],
    *,
    cap: Cap,
    seed: int = 0,
    usage: Usage | None = None,
    on_answer: Callable[[Usage], None] | None = None,
    warn: Callable[[str], None] | None = None,
    patience: float = PATIENCE,
) -> Usage:
    """Draw every wanted sample and hand each to `keep` as soon as it is there.

    `keep` is called in one thread, one sample at a time, before the next request of that worker.

    Args:
        usage: counted up as requests are answered; also what is returned.
        on_answer: called with it after every answer.
        warn: told why requests are being repeated, and that nothing has come for a while.
        patience: seconds without an answer before `warn` is told.

    Raises:
        EndpointError: the endpoint rejected a request (key, model or parameter), or kept failing.
        CapReached: the next request would pass the cap.
    """
    jobs = deque(
        SamplesToDraw(each.prompt, each.samples[at : at + endpoint.per_request])
        for each in wanted
        for at in range(0, len(each.samples), endpoint.per_request)
    )
    run = _Run(endpoint, sampling, jobs, keep, cap, seed, Usage() if usage is None else usage)
    run.on_answer, run.warn, run.patience = on_answer, warn or run.warn, patience
    asyncio.run(run.go())
    return run.usage


class _Run:
    """One event loop's work: a queue of jobs, workers, and a rate limit that stops them all."""

    def __init__(
        self,
        endpoint: Endpoint,
        sampling: Sampling,
        jobs: deque[SamplesToDraw],
        keep: Callable[[EndpointSample], None],
        cap: Cap,
        seed: int,
        usage: Usage,
    ) -> None:
        self.endpoint, self.sampling, self.jobs = endpoint, sampling, jobs
        self.keep, self.cap, self.seed, self.usage = keep, cap, seed, usage
        self.on_answer: Callable[[Usage], None] | None = None
        self.warn: Callable[[str], None] = lambda text: None
        self.patience = PATIENCE
        self.last_answer = time.monotonic()
        self.answered = False
        self.cause = ""
        self.told: set[str] = set()
        self.in_flight = 0
        self.stopping = False
        self.not_before = 0.0
        self.key = os.environ.get(endpoint.key_variable, "")

    async def go(self) -> None:
        """Run workers until the queue is empty; the first error stops all and is raised."""
        import httpx

        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        limits = httpx.Limits(max_connections=self.endpoint.concurrency)
        async with httpx.AsyncClient(
            headers=headers, timeout=self.endpoint.timeout, limits=limits
        ) as client:
            workers = [
                asyncio.create_task(self.work(client))
                for _ in range(min(self.endpoint.concurrency, max(1, len(self.jobs))))
            ]
            watch = asyncio.create_task(self.watch())
            # After an error the others finish what they have asked for: it is paid already.
            ends = await asyncio.gather(*workers, return_exceptions=True)
            watch.cancel()
        for end in ends:
            if isinstance(end, BaseException):
                raise end

    async def watch(self) -> None:
        """Say so while nothing comes."""
        stated = 0.0
        while True:
            await asyncio.sleep(self.patience / 4)
            silent = time.monotonic() - self.last_answer
            if silent >= self.patience and time.monotonic() - stated >= self.patience:
                stated = time.monotonic()
                why = f"; the last failure was {self.cause}" if self.cause else ""
                self.warn(
                    f"{self.endpoint.base_url}: no sample for {silent:.0f} s, {self.in_flight} "
                    f"requested (a request is given up after --timeout {self.endpoint.timeout:g} s)"
                    f"{why}"
                )

    async def work(self, client: Any) -> None:
        """Take jobs until there are none; what a short answer leaves over is a new job."""
        while self.jobs and not self.stopping:
            job = self.jobs.popleft()
            try:
                drawn = await self.ask(client, job)
            except (EndpointError, CapReached):
                self.stopping = True
                raise
            for sample in drawn:
                self.keep(sample)
            self.usage.samples += len(drawn)
            if len(drawn) < len(job.samples):
                self.jobs.append(SamplesToDraw(job.prompt, job.samples[len(drawn) :]))
            if self.on_answer:
                self.on_answer(self.usage)

    async def ask(self, client: Any, job: SamplesToDraw) -> list[EndpointSample]:
        """One request, repeated while that can help.

        Raises:
            EndpointError: it cannot, or did not.
            CapReached: before a request that would pass the cap.
        """
        seed = sample_seed(self.seed, job.prompt.id, job.samples[0])
        body = request_body(
            job.prompt,
            self.sampling,
            model=self.endpoint.model,
            n=len(job.samples),
            seed=seed,
            chat=self.endpoint.api == "chat",
            logprobs=self.endpoint.logprobs,
            extra=self.endpoint.extra_body,
        )
        tries = self.endpoint.retries + 1
        attempt = 0
        while attempt < tries:
            await self.wait()
            if self.stopping:
                return []
            if attempt == 0:
                self.reserve(job)
            pause: float | None = None
            try:
                self.in_flight += len(job.samples)
                answer = await client.post(self.url(), json=body)
                if answer.status_code == 200:
                    return self.samples(job, answer.json(), seed)
                why = f"{answer.status_code} {self.safe(answer.text[:300])}".strip()
                if answer.status_code in FATAL:
                    raise EndpointError(self.rejection(answer.status_code, why))
                pause = retry_after(answer.headers.get("retry-after"))
                if answer.status_code == 429:
                    self.note("429 too many requests", why)
                    self.not_before = time.monotonic() + (pause or backoff(attempt))
                else:
                    self.note(f"{answer.status_code}", why)
            except _transient() as error:
                cause = f"{reason_of(error)}: {error}".removesuffix(": ")  # time-outs say nothing
                self.note(self.safe(reason_of(error)), self.safe(cause))
                if not self.answered and reason_of(error) == NO_CONNECTION:
                    tries = min(tries, CONNECTING)  # nobody is there: say so soon
            finally:
                self.in_flight -= len(job.samples)
            attempt += 1
            if attempt < tries:
                await asyncio.sleep(backoff(attempt - 1) if pause is None else pause)
        raise EndpointError(
            f"{self.endpoint.base_url} failed {tries} times in a row; the last failure was "
            f"{self.cause}. {self.remedy()} Samples drawn so far are kept: run the same command "
            "again to resume"
        )

    def remedy(self) -> str:
        if self.cause.startswith(NO_CONNECTION):
            return "Is the server running, and are host and port right?"
        if self.cause.startswith(TOO_SLOW):
            return "Is the server overloaded? Lower --concurrency, or raise --timeout."
        return "Look into the server's log."

    def url(self) -> str:
        path = "chat/completions" if self.endpoint.api == "chat" else "completions"
        return f"{self.endpoint.base_url.rstrip('/')}/{path}"

    async def wait(self) -> None:
        """Until a rate limit that any worker met is over."""
        while (left := self.not_before - time.monotonic()) > 0:
            await asyncio.sleep(min(left, 1.0))

    def reserve(self, job: SamplesToDraw) -> None:
        """Count a request before it is sent."""
        most = (self.in_flight + len(job.samples)) * self.sampling.max_new_tokens
        if self.usage.requests >= self.cap.requests:
            raise CapReached(
                f"the cap of {self.cap.requests:,} requests is reached: samples drawn so far are "
                "kept; resume with a larger --max-requests"
            )
        if self.usage.tokens + most > self.cap.tokens:
            raise CapReached(
                f"the cap of {self.cap.tokens:,} tokens would be passed ({self.usage.tokens:,} "
                "spent): samples drawn so far are kept; resume with a larger --max-tokens"
            )
        self.usage.requests += 1

    def note(self, reason: str, cause: str) -> None:
        """Count a failure; the first of each kind is told at once."""
        self.cause = cause
        self.usage.retried += 1
        if reason not in self.usage.reasons:
            self.warn(f"{self.endpoint.base_url}: {cause}; the request is repeated")
        self.usage.reasons[reason] = self.usage.reasons.get(reason, 0) + 1

    def tell(self, what: str) -> None:
        """Warn of something, once."""
        if what not in self.told:
            self.told.add(what)
            self.warn(f"{self.endpoint.base_url}: {what}")

    def safe(self, text: str) -> str:
        """Text from outside without the key."""
        return text.replace(self.key, "***") if self.key else text

    def rejection(self, status: int, why: str) -> str:
        ways = {
            401: f"is the key in ${self.endpoint.key_variable} right?",
            403: f"may the key in ${self.endpoint.key_variable} use this model?",
            404: f"is the URL right up to /v1, and is {self.endpoint.model!r} known there?",
        }
        way = ways.get(status, "the endpoint does not accept one of the parameters")
        return f"{self.endpoint.base_url} rejected the request: {why}: {way}"

    def samples(self, job: SamplesToDraw, answer: Any, seed: int) -> list[EndpointSample]:
        """The samples in an answer.

        Raises:
            _Garbage: it is not what the API promises.
        """
        try:
            choices = list(answer["choices"])
            texts = [text_of(choice) for choice in choices]
            usage = answer.get("usage") or {}
        except (TypeError, KeyError, AttributeError) as error:
            raise _Garbage(f"an answer without choices ({error})") from None
        if not choices:
            raise _Garbage("an answer with no choice in it")
        most = self.sampling.max_new_tokens * len(choices)
        self.last_answer, self.answered = time.monotonic(), True
        self.usage.tokens += int(usage.get("total_tokens") or most)
        self.usage.prompt_tokens += int(usage.get("prompt_tokens") or 0)
        self.usage.completion_tokens += int(usage.get("completion_tokens") or 0)
        if not usage.get("completion_tokens"):
            self.usage.uncounted += 1
            self.tell("answers come without usage, so their tokens are not known; the cap counts "
                      f"--max-new-tokens ({self.sampling.max_new_tokens}) for each")  # fmt: skip
        drawn = []
        for sample, choice, text in zip(job.samples, choices, texts):
            logprob, counted = logprobs_of(choice)
            if logprob is None and text and self.endpoint.logprobs:
                self.tell("--logprobs was asked for, and answers come without: this endpoint or "
                          "model gives none, so entropy is not known")  # fmt: skip
            if "message" in choice and choice["message"].get("content") is None:
                self.tell("an answer has no content (null, finish_reason "
                          f"{choice.get('finish_reason')!r}): its text counts as empty; a model "
                          "that thinks first may need a larger --max-new-tokens")  # fmt: skip
            if counted is None and len(choices) == 1:
                counted = usage.get("completion_tokens")
            reason = str(choice.get("finish_reason") or "unknown")
            drawn.append(EndpointSample(job.prompt, sample, text, reason, counted, logprob, seed))
        return drawn


class _Garbage(ValueError):
    """An answer that is not what the API promises."""


def _transient() -> tuple[type[Exception], ...]:
    """Failures worth a repeat: cut connections, timeouts, answers that are not JSON."""
    import httpx

    return httpx.TransportError, httpx.DecodingError, _Garbage, ValueError
