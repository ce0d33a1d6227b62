"""Samples from any OpenAI-compatible endpoint: retried, rate-limited, capped, and never paid twice.

`draw` takes what is still to be sampled and hands over each sample the moment it arrives; keeping
it is the caller's business, so a killed run resumes from what was kept. A request that fails is
repeated with growing pauses. Where that does not help one prompt, it is left out until the others
are done; where it helps none, the last cause is raised. Repeats do not count against the cap. An
answer has a longest time and a largest size. The key is read from the environment, sent in one
header, and cut out of every message.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from bestofk.messages import printable
from bestofk.sampling.openai_wire import (
    NO_CONNECTION,
    TOO_SLOW,
    Answer,
    BadAnswer,
    backoff,
    read_answer,
    reason_of,
    request_body,
    retry_after,
    sample_seed,
)
from bestofk.sampling.sampler import Sampling
from bestofk.types import Prompt

REJECTED = frozenset({400, 413, 422})
"""Statuses that a repeat will not change, but another prompt may."""
REDIRECTS = frozenset({301, 302, 303, 307, 308})
FATAL = REDIRECTS | {401, 403, 404, 405, 415}
"""Statuses that no prompt will change."""
IN_A_ROW = 3
"""Requests given up with no sample between them before drawing ends."""
PATIENCE = 20.0
"""Seconds without a sample before that is reported."""
CONNECTING = 3
"""Tries where no connection was ever made."""
CONNECT_SECONDS = 30.0
"""Until a connection is made, where --timeout is longer."""
ANSWER_BYTES, TOKEN_BYTES = 2**24, 2**10
"""The largest answer, unless stated: so much, and so much for each token asked for."""
ENCODINGS = ("identity", "gzip", "deflate")
"""Compressions of an answer: none that makes more than 1,032 bytes of one."""


class EndpointError(RuntimeError):
    """The endpoint rejected a request, or kept failing; samples drawn so far are kept."""


class GivenUp(EndpointError):
    """A request that failed for good, while those for other prompts may not."""


def key_in(variable: str) -> str:
    """The key in an environment variable; empty where it is not set.

    Raises:
        ValueError: no header can hold it. Its text would be in a later error.
    """
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ValueError(f"${variable} has a character that no key has: set it again")
    return key


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
    """Seconds until the end of an answer; a request that takes longer counts as cut."""
    answer_bytes: int = 0
    """Bytes of the largest answer; 0 for 16 MiB and 1 KiB per token asked for."""
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of every request, such as a provider's own options."""
    logprobs: bool = False
    """Ask for log-probabilities, where the endpoint gives them."""

    def __post_init__(self) -> None:
        if not self.base_url.startswith(("http://", "https://")):
            raise ValueError(f"an endpoint starts with http:// or https://, got {self.base_url!r}")
        try:
            _ = urlsplit(self.base_url).port
        except ValueError as error:
            raise ValueError(f"{self.base_url!r} is no address of an endpoint: {error}") from None
        for name in ("concurrency", "per_request"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, got {getattr(self, name)}")
        if self.retries < 0 or self.timeout <= 0 or self.answer_bytes < 0:
            raise ValueError(
                f"retries >= 0, timeout > 0 and answer_bytes >= 0, got {self.retries}, "
                f"{self.timeout} and {self.answer_bytes}"
            )

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
    patience: float = PATIENCE,
) -> Usage:
    """Draw every missing sample and hand each to `keep` as soon as it is there.

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
        for each in missing
        for at in range(0, len(each.samples), endpoint.per_request)
    )
    usage = Usage() if usage is None else usage
    failures = _Failures(endpoint, usage, warn or (lambda text: None))
    drawing = _Drawing(endpoint, sampling, jobs, cap, seed, usage, failures, patience)
    asyncio.run(drawing.run(keep, on_answer or (lambda usage: None)))
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
    warned: set[str] = field(default_factory=set)

    @property
    def key(self) -> str:
        return key_in(self.endpoint.key_variable)

    def printed(self, text: str) -> str:
        """A text from outside for a terminal, without the key."""
        return printable(text.replace(self.key, "***") if self.key else text)[:300].strip()

    def repeat(self, reason: str, cause: str) -> None:
        """Count a failure; the first of each kind is told at once."""
        self.last = cause
        self.usage.retried += 1
        if reason not in self.usage.reasons:
            self.warn(f"{self.endpoint.base_url}: {cause}; the request is repeated")
        self.usage.reasons[reason] = self.usage.reasons.get(reason, 0) + 1

    def once(self, warning: str) -> None:
        """Warn of something, once."""
        if warning not in self.warned:
            self.warned.add(warning)
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

    def rejection(self, status: int, cause: str) -> EndpointError:
        ways = {
            401: f"is the key in ${self.endpoint.key_variable} right?",
            403: f"may the key in ${self.endpoint.key_variable} use this model?",
            404: f"is the URL right up to /v1, and is {self.endpoint.model!r} known there?",
            **dict.fromkeys(REDIRECTS, "state the URL that it redirects to"),
        }
        way = ways.get(status, "the endpoint does not accept the prompt or a parameter")
        kind = GivenUp if status in REJECTED else EndpointError
        return kind(f"{self.endpoint.base_url} rejected the request: {cause}: {way}")

    def exhausted(self, tries: int, cause: str, kind: type[EndpointError]) -> EndpointError:
        """The error after the last of several tries."""
        way = "Look into the server's log."
        if cause.startswith(NO_CONNECTION):
            way = "Is the server running, and are host and port right?"
        elif cause.startswith(TOO_SLOW):
            way = "Is the server overloaded? Lower --concurrency, or raise --timeout."
        return kind(
            f"{self.endpoint.base_url} failed {tries} times in a row; the last failure was "
            f"{cause}. {way} Samples drawn so far are kept: run the same command again to resume"
        )

    def raise_given_up(self) -> None:
        if self.given_up:
            samples = sum(len(job.samples) for job, _ in self.given_up)
            problems = len({job.prompt.id for job, _ in self.given_up})
            raise EndpointError(
                f"{samples} samples of {problems} problems could not be drawn: "
                f"{self.given_up[-1][1]}"
            )


class _Drawing:
    """One event loop's work: a queue of jobs, workers, and a rate limit that stops them all."""

    def __init__(
        self,
        endpoint: Endpoint,
        sampling: Sampling,
        jobs: deque[SamplesToDraw],
        cap: Cap,
        seed: int,
        usage: Usage,
        failures: _Failures,
        patience: float,
    ) -> None:
        self.endpoint, self.sampling, self.jobs = endpoint, sampling, jobs
        self.cap, self.seed, self.usage = cap, seed, usage
        self.failures, self.patience = failures, patience
        self.last_answer = time.monotonic()
        self.answered = False
        self.in_flight = 0
        self.stopping = False
        self.not_before = 0.0

    async def run(
        self, keep: Callable[[EndpointSample], None], on_answer: Callable[[Usage], None]
    ) -> None:
        """Run workers until the queue is empty; the first error stops all and is raised."""
        import httpx

        headers = {"Content-Type": "application/json", "Accept-Encoding": ", ".join(ENCODINGS[1:])}
        if self.failures.key:
            headers["Authorization"] = f"Bearer {self.failures.key}"
        limits = httpx.Limits(max_connections=self.endpoint.concurrency)
        timeout = httpx.Timeout(None, connect=min(self.endpoint.timeout, CONNECT_SECONDS))
        async with httpx.AsyncClient(headers=headers, timeout=timeout, limits=limits) as client:
            workers = [
                asyncio.create_task(self.work(client, keep, on_answer))
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
            await asyncio.sleep(self.patience / 4)
            silent = time.monotonic() - self.last_answer
            if silent >= self.patience and time.monotonic() - last_warning >= self.patience:
                last_warning = time.monotonic()
                cause = self.failures.last
                self.failures.warn(
                    f"{self.endpoint.base_url}: no sample for {silent:.0f} s, {self.in_flight} "
                    f"requested (a request is given up after --timeout {self.endpoint.timeout:g} s)"
                    + (f"; the last failure was {cause}" if cause else "")
                )

    async def work(
        self,
        client: Any,
        keep: Callable[[EndpointSample], None],
        on_answer: Callable[[Usage], None],
    ) -> None:
        """Take jobs until there are none; what a short answer leaves over is a new job."""
        while self.jobs and not self.stopping:
            job = self.jobs.popleft()
            try:
                try:
                    samples = await self.ask(client, job)
                except GivenUp as error:
                    self.failures.give_up(job, error)
                    continue
                for sample in samples:
                    keep(sample)
            except BaseException:
                self.stopping = True
                raise
            self.usage.samples += len(samples)
            numbers = {sample.sample for sample in samples}
            if missing := tuple(number for number in job.samples if number not in numbers):
                self.jobs.append(SamplesToDraw(job.prompt, missing))
            on_answer(self.usage)

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
        largest = self.endpoint.answer_bytes or (
            ANSWER_BYTES + TOKEN_BYTES * len(job.samples) * self.sampling.max_new_tokens
        )
        tries, attempt = self.endpoint.retries + 1, 0
        cause, kind = "", EndpointError
        while attempt < tries:
            await self.wait()
            if self.stopping:
                return []
            if attempt == 0:
                in_flight = self.in_flight + len(job.samples)
                self.cap.check(self.usage, in_flight * self.sampling.max_new_tokens)
                self.usage.requests += 1
            pause = backoff(attempt)
            self.in_flight += len(job.samples)
            try:
                async with asyncio.timeout(self.endpoint.timeout):
                    status, headers, content = await fetch(
                        client, self.endpoint.url, json.dumps(body).encode(), largest
                    )
                if status == 200:
                    return self.samples(job, read_answer(content, len(job.samples)), seed)
                told = content.decode("utf-8", "replace") or headers.get("location", "")
                cause, kind = self.failures.printed(f"{status} {told}"), EndpointError
                if status in FATAL | REJECTED:
                    raise self.failures.rejection(status, cause)
                retry = retry_after(headers.get("retry-after"))
                if status == 429:
                    self.not_before = time.monotonic() + (retry or pause)
                pause = pause if retry is None else retry
                self.failures.repeat(
                    "429 too many requests" if status == 429 else str(status), cause
                )
            except transient() as error:
                reason = reason_of(error)
                cause = self.failures.printed(f"{reason}: {error}").removesuffix(
                    ":"
                )  # of time-outs
                self.failures.repeat(reason, cause)
                kind = EndpointError if reason == NO_CONNECTION else GivenUp
                if not self.answered and reason == NO_CONNECTION:
                    tries = min(tries, CONNECTING)  # nobody is there: say so soon
            finally:
                self.in_flight -= len(job.samples)
            attempt += 1
            if attempt < tries:
                await asyncio.sleep(pause)
        raise self.failures.exhausted(tries, cause, kind)

    async def wait(self) -> None:
        """Until a rate limit that any worker met is over."""
        while (seconds := self.not_before - time.monotonic()) > 0:
            await asyncio.sleep(min(seconds, 1.0))

    def samples(self, job: SamplesToDraw, answer: Answer, seed: int) -> list[EndpointSample]:
        """The samples in an answer; what it costs is counted."""
        limit, once = self.sampling.max_new_tokens, self.failures.once
        self.last_answer, self.answered, self.failures.in_a_row = time.monotonic(), True, 0
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


async def fetch(
    client: Any,
    url: str,
    body: bytes | None,
    largest: int,
    headers: Mapping[str, str | bytes] | None = None,
) -> tuple[int, Mapping[str, str], bytes]:
    """Status, headers and content of an answer; of an error, the beginning of the content. Without
    a body it is a GET.

    Raises:
        BadAnswer: more than `largest` bytes, or a compression that was not asked for.
    """
    content = bytearray()
    async with client.stream(
        "GET" if body is None else "POST", url, content=body, headers=headers
    ) as answer:
        encoding = answer.headers.get("content-encoding", "identity").lower()
        if encoding not in ENCODINGS:
            raise BadAnswer(f"an answer compressed by {encoding!r}, which was not asked for")
        async for piece in answer.aiter_bytes():
            content += piece
            if answer.status_code != 200 and len(content) > 2000:
                break
            if len(content) > largest:
                raise BadAnswer(
                    f"an answer of more than {largest:,} bytes (`bestofk sample` and `solve` take "
                    "--max-answer-bytes)"
                )
        return answer.status_code, answer.headers, bytes(content)


def transient() -> tuple[type[Exception], ...]:
    """Failures worth a repeat: cut connections, timeouts, answers that are no completions."""
    import httpx

    return httpx.TransportError, httpx.DecodingError, TimeoutError, BadAnswer
