"""Samples from any OpenAI-compatible endpoint: retried, rate-limited, capped, and never paid twice.

`draw` takes what is still to be sampled and hands over each sample the moment it arrives; keeping
it is the caller's business, so a killed run resumes from what was kept. A request that fails is
repeated. Where that does not help one prompt, it is left out until the others are done; where it
helps none, the last cause is raised. Repeats do not count against the cap.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from bestofk.messages import counted
from bestofk.sampling.openai_wire import Answer, read_answer, request_body, sample_seed
from bestofk.sampling.retrying_client import (
    ANSWER_BYTES,
    NO_CONNECTION,
    REDIRECTS,
    REJECTED,
    TOO_SLOW,
    RequestFailed,
    RetryingClient,
    check_address,
    key_in,
)
from bestofk.sampling.sampler import Sampling
from bestofk.sections import Count, NaturalNumber, Positive, Section
from bestofk.types import Prompt

IN_A_ROW = 3
"""Requests given up with no sample between them before drawing ends."""
PATIENCE = 20.0
"""Seconds without a sample before that is reported."""
TOKEN_BYTES = 2**10
"""Of the largest answer, unless stated, for each token asked for."""


class EndpointError(RuntimeError):
    """The endpoint rejected a request, or kept failing; samples drawn so far are kept."""


class GivenUp(EndpointError):
    """A request that failed for good, while those for other prompts may not."""


class CapReached(RuntimeError):
    """The stated cap on requests or tokens was reached; samples drawn so far are kept."""


class Endpoint(Section):
    """Where to ask, and how hard."""

    base_url: str
    """Up to and including the version, such as http://localhost:8000/v1."""
    model: str
    key_variable: str = "OPENAI_API_KEY"
    """Environment variable that holds the key; unset means none is sent."""
    api: Literal["chat", "completions"] = "chat"
    """`completions` sends text as it is, for base models."""
    concurrency: Count = 8
    """Requests in flight at once."""
    per_request: Count = 1
    """Samples asked for in one request: the prompt is paid for once, where the server knows `n`."""
    retries: NaturalNumber = 8
    """Times a request is repeated after 429, 5xx, a cut connection or an invalid answer."""
    timeout: Positive = 600.0
    """Seconds until the end of an answer; a request that takes longer counts as cut."""
    answer_bytes: NaturalNumber = 0
    """Bytes of the largest answer; 0 for 16 MiB and 1 KiB per token asked for."""
    extra_body: Mapping[str, Any] = Field(default_factory=dict)
    """Further fields of every request, such as a provider's own options."""
    logprobs: bool = False
    """Ask for log-probabilities, where the endpoint gives them."""

    @model_validator(mode="after")
    def _has_an_address(self) -> Self:
        check_address("an endpoint", self.base_url)
        return self

    @property
    def url(self) -> str:
        path = "chat/completions" if self.api == "chat" else "completions"
        return f"{self.base_url.rstrip('/')}/{path}"


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
    warned: set[str] = field(default_factory=set)
    """What was said of answers."""

    def count(self, answer: Answer, max_new_tokens: int) -> None:
        """Add the tokens of an answer."""
        tokens = answer.usage
        self.tokens += tokens.get("total_tokens", max_new_tokens * len(answer.choices))
        self.prompt_tokens += tokens.get("prompt_tokens", 0)
        self.completion_tokens += tokens.get("completion_tokens", 0)
        self.uncounted += "completion_tokens" not in tokens


@dataclass(frozen=True)
class Cap:
    """The most a run may cost."""

    requests: int
    tokens: int

    def check(self, usage: Usage, tokens: int) -> None:
        """
        Raises:
            CapReached: one more request, with so many tokens in flight, would pass it.
        """
        if usage.requests >= self.requests:
            raise CapReached(
                f"the cap of {self.requests:,} requests is reached: samples drawn so far are "
                "kept; resume with a larger --max-requests"
            )
        if usage.tokens + tokens > self.tokens:
            raise CapReached(
                f"the cap of {self.tokens:,} tokens would be passed ({usage.tokens:,} spent): "
                "samples drawn so far are kept; resume with a larger --max-tokens"
            )


def draw(
    endpoint: Endpoint,
    missing: Iterable[SamplesToDraw],
    sampling: Sampling,
    keep: Callable[[EndpointSample], None],
    *,
    cap: Cap,
    seed: int = 0,
    usage: Usage | None = None,
    on_answer: Callable[[Usage], None] | None = None,
    warn: Callable[[str], None] | None = None,
) -> Usage:
    """Draw every missing sample and hand each to `keep` as soon as it is there.

    `keep` is called in one thread, one sample at a time, before the next request of that worker.

    Args:
        usage: counted up as requests are answered; also what is returned.
        on_answer: called with it after every answer.
        warn: told why requests are being repeated, and that nothing has come for a while.

    Raises:
        EndpointError: the endpoint rejected a request (key, model or parameter), or kept failing.
        CapReached: the next request would pass the cap.
    """
    jobs = deque(
        SamplesToDraw(each.prompt, each.samples[at : at + endpoint.per_request])
        for each in missing
        for at in range(0, len(each.samples), endpoint.per_request)
    )
    usage = Usage() if usage is None else usage
    drawing = _Drawing(
        endpoint=endpoint,
        sampling=sampling,
        jobs=jobs,
        keep=keep,
        on_answer=on_answer or (lambda usage: None),
        cap=cap,
        seed=seed,
        usage=usage,
        failures=_Failures(endpoint, usage, warn or (lambda text: None)),
    )
    asyncio.run(drawing.run())
    return usage


@dataclass
class _Failures:
    """What went wrong so far: counted, told without the key, and in the end raised."""

    endpoint: Endpoint
    usage: Usage
    warn: Callable[[str], None]
    last: str = ""
    in_a_row: int = 0
    """Requests given up since the last sample."""
    given_up: list[tuple[SamplesToDraw, GivenUp]] = field(default_factory=list)

    def repeat(self, reason: str, cause: str) -> None:
        """Count a failure; the first of each kind is told at once."""
        self.last = cause
        self.usage.retried += 1
        if reason not in self.usage.reasons:
            self.warn(f"{self.endpoint.base_url}: {cause}; the request is repeated")
        self.usage.reasons[reason] = self.usage.reasons.get(reason, 0) + 1

    def once(self, warning: str) -> None:
        """Warn of something, once."""
        if warning not in self.usage.warned:
            self.usage.warned.add(warning)
            self.warn(f"{self.endpoint.base_url}: {warning}")

    def give_up(self, job: SamplesToDraw, error: GivenUp) -> None:
        """Leave a job out.

        Raises:
            GivenUp: so were those before it.
        """
        self.given_up.append((job, error))
        self.in_a_row += 1
        if self.in_a_row >= IN_A_ROW:
            raise error
        self.warn(f"problem {job.prompt.id!r} is left out: {error}")

    def error_of(self, failure: RequestFailed) -> EndpointError:
        """What a request that failed for good means, and what to do."""
        if failure.is_final:
            return self.rejection(failure)
        way = "Look into the server's log."
        if failure.reason == NO_CONNECTION:
            way = "Is the server running, and are host and port right?"
        elif failure.reason == TOO_SLOW:
            way = "Is the server overloaded? Lower --concurrency, or raise --timeout."
        fails_all = failure.status or failure.reason == NO_CONNECTION
        kind = EndpointError if fails_all else GivenUp
        tries = counted(failure.tries, "time")
        return kind(
            f"{self.endpoint.base_url} failed {tries} in a row; the last failure was "
            f"{failure}. {way} Samples drawn so far are kept: run the same command again to resume"
        )

    def rejection(self, failure: RequestFailed) -> EndpointError:
        ways = {
            401: f"is the key in ${self.endpoint.key_variable} right?",
            403: f"may the key in ${self.endpoint.key_variable} use this model?",
            404: f"is the URL right up to /v1, and is {self.endpoint.model!r} known there?",
            **dict.fromkeys(REDIRECTS, "state the URL that it redirects to"),
        }
        way = ways.get(failure.status, "the endpoint does not accept the prompt or a parameter")
        kind = GivenUp if failure.status in REJECTED else EndpointError
        return kind(f"{self.endpoint.base_url} rejected the request: {failure}: {way}")

    def raise_given_up(self) -> None:
        if self.given_up:
            samples = sum(len(job.samples) for job, _ in self.given_up)
            problems = len({job.prompt.id for job, _ in self.given_up})
            raise EndpointError(
                f"{samples} samples of {problems} problems could not be drawn: "
                f"{self.given_up[-1][1]}"
            )


class _Stopped(Exception):
    """Nothing more is asked: another worker met an error."""


@dataclass(kw_only=True)
class _Drawing:
    """One event loop's work: a queue of jobs and workers."""

    endpoint: Endpoint
    sampling: Sampling
    jobs: deque[SamplesToDraw]
    keep: Callable[[EndpointSample], None]
    on_answer: Callable[[Usage], None]
    cap: Cap
    seed: int
    usage: Usage
    failures: _Failures
    last_answer: float = field(default_factory=time.monotonic)
    in_flight: dict[int, int] = field(default_factory=dict)
    """Samples asked for, by job."""
    stopping: bool = False

    async def run(self) -> None:
        """Run workers until the queue is empty; the first error stops all and is raised."""
        key = key_in(self.endpoint.key_variable)
        self.authorization = f"Bearer {key}" if key else ""
        async with RetryingClient(
            concurrency=self.endpoint.concurrency,
            retries=self.endpoint.retries,
            timeout=self.endpoint.timeout,
        ) as self.client:
            workers = [
                asyncio.create_task(self.work())
                for _ in range(min(self.endpoint.concurrency, max(1, len(self.jobs))))
            ]
            watch = asyncio.create_task(self.watch())
            # After an error the others finish what they have asked for: it is paid already.
            ends = await asyncio.gather(*workers, return_exceptions=True)
            watch.cancel()
        errors = [end for end in ends if isinstance(end, BaseException)]
        # A cap is the last thing to tell: what failed before it has another remedy.
        errors.sort(key=lambda error: isinstance(error, CapReached))
        if not errors or isinstance(errors[0], CapReached):
            self.failures.raise_given_up()
        if errors:
            raise errors[0]

    async def watch(self) -> None:
        """Say so while nothing comes."""
        last_warning = 0.0
        while True:
            await asyncio.sleep(PATIENCE / 4)
            silent = time.monotonic() - self.last_answer
            if min(silent, time.monotonic() - last_warning) >= PATIENCE:
                last_warning = time.monotonic()
                cause = self.failures.last
                self.failures.warn(
                    f"{self.endpoint.base_url}: no sample for {silent:.0f} s, "
                    f"{sum(self.in_flight.values())} "
                    f"requested (a request is given up after --timeout {self.endpoint.timeout:g} s)"
                    + (f"; the last failure was {cause}" if cause else "")
                )

    async def work(self) -> None:
        """Take jobs until there are none; what a short answer leaves over is a new job."""
        while self.jobs and not self.stopping:
            job = self.jobs.popleft()
            try:
                try:
                    samples = await self.ask(job)
                except GivenUp as error:
                    self.failures.give_up(job, error)
                    continue
                except _Stopped:
                    return
                for sample in samples:
                    self.keep(sample)
            except BaseException:
                self.stopping = True
                raise
            self.usage.samples += len(samples)
            numbers = {sample.sample for sample in samples}
            if missing := tuple(number for number in job.samples if number not in numbers):
                self.jobs.append(SamplesToDraw(job.prompt, missing))
            self.on_answer(self.usage)

    async def ask(self, job: SamplesToDraw) -> list[EndpointSample]:
        """One request, repeated while that can help.

        Raises:
            EndpointError: it cannot, or did not.
            CapReached: before a request that would pass the cap.
        """
        count, longest = len(job.samples), self.sampling.max_new_tokens
        seed = sample_seed(self.seed, job.prompt.id, job.samples[0])
        body = request_body(
            job.prompt,
            self.sampling,
            model=self.endpoint.model,
            n=count,
            seed=seed,
            chat=self.endpoint.api == "chat",
            logprobs=self.endpoint.logprobs,
            extra=self.endpoint.extra_body,
        )

        def before(attempt: int) -> None:
            if self.stopping:
                raise _Stopped
            if attempt == 0:
                in_flight = sum(self.in_flight.values()) + count
                self.cap.check(self.usage, in_flight * longest)
                self.usage.requests += 1
                self.in_flight[id(job)] = count

        try:
            return await self.client.ask(
                self.endpoint.url,
                json.dumps(body).encode(),
                lambda content: self.samples(job, read_answer(content, count), seed),
                authorization=self.authorization,
                largest=self.endpoint.answer_bytes or ANSWER_BYTES + TOKEN_BYTES * count * longest,
                before=before,
                failed=lambda failure: self.failures.repeat(failure.reason, str(failure)),
            )
        except RequestFailed as failure:
            raise self.failures.error_of(failure) from None
        finally:
            self.in_flight.pop(id(job), None)

    def samples(self, job: SamplesToDraw, answer: Answer, seed: int) -> list[EndpointSample]:
        """The samples in an answer; what it costs is counted."""
        limit, once = self.sampling.max_new_tokens, self.failures.once
        self.last_answer, self.failures.in_a_row = time.monotonic(), 0
        self.usage.count(answer, limit)
        if "completion_tokens" not in answer.usage:
            once(
                "answers come without usage, so their tokens are not known; the cap counts "
                f"--max-new-tokens ({limit}) for each"
            )
        if answer.fault:
            self.failures.repeat("a choice that is not a completion", answer.fault)
        samples = []
        for sample, choice in zip(job.samples, answer.choices):
            if choice is None:
                continue
            text, reason, n_tokens = choice.text, choice.finish_reason, choice.n_tokens
            if choice.logprob_sum is None and text and self.endpoint.logprobs:
                once(
                    "--logprobs was asked for, and answers come without: this endpoint or model "
                    "gives none, so entropy is not known"
                )
            if not choice.has_content:
                once(
                    f"an answer has no content (null, finish_reason {reason!r}): its text counts "
                    "as empty; a model that thinks first may need a larger --max-new-tokens"
                )
            if n_tokens is None and len(answer.choices) == 1:
                n_tokens = answer.usage.get("completion_tokens")
            samples.append(
                EndpointSample(job.prompt, sample, text, reason, n_tokens, choice.logprob_sum, seed)
            )
        return samples
