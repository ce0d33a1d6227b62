"""`bestofk serve`: an OpenAI-compatible server that answers with the best of k of another one."""

from __future__ import annotations

import importlib
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from pydantic import Field

from bestofk.cli._files import json_pairs
from bestofk.cli._options import VerbOptions, option, parsed
from bestofk.messages import say_aside
from bestofk.types import Prompt

if TYPE_CHECKING:
    from bestofk.deploy.choosing import Chooser
    from bestofk.deploy.serving import ServerLimits


class ServeOptions(VerbOptions):
    """Serve the best of k samples of an OpenAI-compatible server.

    Clients ask as they ask the other server. With a verifier the first pass is the
    answer, and the other samples are cancelled. One request may lower k:
    "bestofk": {"k": 4}. The answer says its verdict and what was drawn.
    """

    examples: ClassVar = (
        "bestofk serve --upstream http://127.0.0.1:8000 --verifier my.py:reward",
        "bestofk serve --upstream URL --k 16 --vote",
    )

    groups: ClassVar = {
        "What": ("upstream", "k", "verifier", "scorer", "vote", "fields"),
        "Where": ("host", "port", "token_variable"),
        "Limits": ("timeout", "requests"),
    }

    upstream: str = option("URL")
    """The server that draws: vLLM, SGLang, llama.cpp or a provider."""
    k: int = Field(8, ge=1, le=1024)
    """The most samples of a request."""
    verifier: str = option("NAME", default="")
    """Its first pass is the answer: maths, code, ..., or a function of yours, file.py:function."""
    verifier_option: tuple[str, ...] = option("KEY=VALUE", default=())
    """Options of the verifier."""
    scorer: str = option("NAME", default="")
    """A verifier whose reward chooses, where nothing passes or there is no other."""
    scorer_option: tuple[str, ...] = option("KEY=VALUE", default=())
    """Options of the scorer."""
    vote: bool = False
    """Answer with the most frequent answer of k."""
    fields: tuple[str, ...] = option("NAME", default=())
    """Fields that verifiers take from a request's metadata, such as expected; the rest of it is
    ignored."""
    threshold: float = 1.0
    """A reward of at least this passes."""
    at_once: int = Field(0, ge=0)
    """Samples of a request drawn side by side; by default all k. Fewer cost fewer tokens and more
    time."""
    host: str = "127.0.0.1"
    """Address to listen on. Beyond this machine a token is needed."""
    port: int = 8001
    """Port to listen on; 0 takes a free one."""
    hosts: tuple[str, ...] = option("NAME", default=())
    """Further names that the Host header may have."""
    token_variable: str = option("NAME", default="BESTOFK_TOKEN")
    """Environment variable with the token that clients send as their key."""
    key_variable: str = option("NAME", default="")
    """Environment variable with the key for the upstream server; by default the client's is passed
    through."""
    timeout: float = Field(600.0, gt=0)
    """Seconds of a request; then the best of what has come is the answer."""
    requests: int = Field(1024, ge=1)
    """Requests answered at once; more get status 429."""
    concurrency: int = Field(256, ge=1)
    """Samples drawn at once, over all requests."""
    retries: int = Field(2, ge=0)
    """Times a failing upstream request is repeated."""
    max_body_bytes: int = Field(4 << 20, ge=1)
    """Bytes of the largest request."""
    judges: int = Field(0, ge=0)
    """Samples judged at once; by default 16, and 1 for a function that is not async."""

    @property
    def base_url(self) -> str:
        """The upstream server's address with its version."""
        from bestofk.sampling.retrying_client import check_address

        check_address("--upstream", self.upstream)
        base = self.upstream.rstrip("/")
        return base if urlsplit(base).path else f"{base}/v1"

    @property
    def by(self) -> Chooser:
        return "vote" if self.vote else "verifier" if self.verifier else "score"

    @property
    def limits(self) -> ServerLimits:
        """What the server allows and who may ask."""
        from bestofk.deploy.choosing import check_drawing
        from bestofk.deploy.serving import LOOPBACK, ServerLimits
        from bestofk.sampling.retrying_client import key_in

        check_drawing(self.k, 1.0, self.threshold)
        token = key_in(self.token_variable)
        if self.host not in LOOPBACK and not token:
            raise ValueError(
                f"on {self.host} others than this machine can ask, so a token is needed: export "
                f"{self.token_variable}=$(openssl rand -hex 16)"
            )
        key = key_in(self.key_variable) if self.key_variable else ""
        if self.key_variable and not key:
            raise ValueError(f"${self.key_variable} is empty: it has no key for {self.upstream}")
        everywhere = self.host in ("0.0.0.0", "::") and not self.hosts
        return ServerLimits(
            timeout=self.timeout,
            requests=self.requests,
            concurrency=self.concurrency,
            retries=self.retries,
            body_bytes=self.max_body_bytes,
            token=token,
            upstream_key=key,
            hosts=() if everywhere else (*LOOPBACK, self.host, *self.hosts),
        )


def main(argv: list[str]) -> int:
    options = parsed(ServeOptions, argv, "bestofk serve")
    if not (options.verifier or options.scorer or options.vote):
        raise ValueError("state what chooses: --verifier NAME, --scorer NAME or --vote")
    for module in ("starlette", "uvicorn", "httpx"):
        importlib.import_module(module)  # its absence is one sentence
    from bestofk.deploy.requests import Rules
    from bestofk.deploy.serving import Service, listening, run

    names = ("k", "by", "threshold", "at_once", "fields")
    rules = Rules(**{name: getattr(options, name) for name in names})
    limits, address = options.limits, options.base_url
    with ExitStack() as stack:
        judge = stack.enter_context(judge_of(options))
        threads = options.judges or min(
            map(threads_of, getattr(judge, "verifiers", [judge])), default=16
        )
        service = Service(address, judge, rules, limits, judges=threads, say=say_aside)
        listener = listening(options.host, options.port)
        name = f"[{options.host}]" if ":" in options.host else options.host
        say_aside(
            f"http://{name}:{listener.getsockname()[1]}/v1 answers with the best of {options.k} "
            f"from {address}, by {judge.name}"
        )
        run(service, listener)
    return 0


def threads_of(judge: Any) -> int:
    """Calls that a verifier supports at once: a plain function of a user's may not be called by two
    threads."""
    from bestofk.rewards import BatchFunctionVerifier

    return 1 if isinstance(judge, BatchFunctionVerifier) else getattr(judge, "threads", 16)


def judge_of(options: ServeOptions) -> Any:
    """The verifier and the scorer, checked with what a request can bring."""
    from bestofk.deploy.choosing import check_comparing
    from bestofk.rewards import BatchVerifier, scored_by, verifier

    parts: list[BatchVerifier | None] = []
    for role in ("verifier", "scorer"):
        name, own = getattr(options, role), json_pairs(getattr(options, f"{role}_option"))
        if own and not name:
            raise ValueError(f"--{role}-option is for --{role}")
        parts.append(verifier(name, **own) if name else None)
    judge = scored_by(*parts)
    check_comparing(judge, options.by)
    request = Prompt("a request", "", "serve", dict.fromkeys(options.fields, ""))
    try:
        judge.check_prompts([request])
    except ValueError as error:
        raise ValueError(f"{error}; --fields names what a request brings in its metadata") from None
    return judge
