"""An environment as a verl agent loop: `rollout.agent.default_agent_loop=bestofk`.

`+algorithm.bestofk.environment=guess.py:Guess` names the class, and the table
`algorithm.bestofk.limits` holds its limits. What is played is the same code as in `bestofk.train`.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
)

from bestofk.environments.author_calls import AuthorThreads, Calling
from bestofk.environments.author_class import load_environment
from bestofk.environments.conversation import with_observation
from bestofk.environments.limits import TurnLimits
from bestofk.environments.rollout import OpenTrajectory, TurnSampler
from bestofk.types import Prompt, Verdict

from .ppo_settings import options_of


class EnvironmentLoop(AgentLoopBase):
    """One trajectory. The environment's rewards are verl's, where it gives them."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        options = options_of(self.config.algorithm)
        self.source, self.threads, self.calls = source_of(
            self.tokenizer,
            options["environment"],
            TurnLimits(**options.get("limits", {})),
            self.config.actor_rollout_ref.model.path,
            OmegaConf.to_yaml(OmegaConf.create(dict(self.apply_chat_template_kwargs))),
        )

    async def aside(self, calling: Calling[None]) -> None:
        """Run the author's code in a thread, so that other trajectories go on."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self.threads, self.calls.results, [calling])

    async def run(self, sampling_params: dict[str, Any], **columns: Any) -> AgentLoopOutput:
        """Play a trajectory of the row whose columns these are."""
        uid, messages = columns.get("uid"), tuple(map(dict, columns["raw_prompt"]))
        spec = {**columns, **(columns.get("extra_info") or {})}  # what `reset` gets
        prompt = Prompt(str(uid or columns.get("index")), messages, "verl", spec)
        row = OpenTrajectory(
            prompt, self.source.limits, text=self.source.text_for(prompt),
            longest=self.rollout_config.response_length,
        )  # fmt: skip
        session = f"{uid}/{columns.get('session_id', uuid4().hex)}".encode()
        seed = int.from_bytes(hashlib.sha256(session).digest()[:4])
        await self.aside(row.begin(self.source.environments, seed))
        start = self._cap_text_prompt_length(list(row.text.prompt(shown_to_group(row, uid))))
        request = uuid4().hex
        has_log_probs, extra = True, dict[str, Any]()
        while row.turns == 0 or row.ended_by is None:
            most = row.free
            drawn = await self.server_manager.generate(
                request_id=request,  # of the whole trajectory, so that one server keeps its prefix
                prompt_ids=[*start, *row.tokens],
                sampling_params={**sampling_params, "max_tokens": most},
            )
            if not (ids := drawn.token_ids):
                raise RuntimeError(f"the rollout server drew no token: {drawn.stop_reason}")
            # a turn that is shorter than it may be was ended by its last token, whichever it is
            ends = {self.tokenizer.eos_token_id, *(ids[-1:] if len(ids) < most else [])}
            log_probs = drawn.log_probs or [0.0] * len(ids)
            has_log_probs = has_log_probs and bool(drawn.log_probs)
            extra = {**drawn.extra_fields, **{k: v for k, v in extra.items() if k[:4] == "min_"}}
            await self.aside(row.take(ids, log_probs, ends=ends))
        await self.aside(row.finish())
        verdict = row.verdict
        if verdict is None and hasattr(row.environment, "get_reward"):
            verdict = Verdict.unscored("get_reward returned None")
        judged = {} if verdict is None else {"acc": verdict.reward, "score": verdict.score}
        judged = {name: value for name, value in judged.items() if value is not None}
        return AgentLoopOutput(
            prompt_ids=start,
            response_ids=row.tokens,
            response_mask=list(map(int, row.own)),
            response_logprobs=row.log_probs if has_log_probs else None,
            reward_score=None if verdict is None else verdict.reward,
            num_turns=1 + len(row.messages),
            metrics=AgentLoopMetrics(),
            extra_fields={
                **extra, "reward_extra_info": judged, "turn_scores": [], "tool_rewards": [],
                "messages": row.messages, "ended_by": row.ended_by,
            },
        )  # fmt: skip


@functools.cache
def source_of(
    tokenizer: Any, environment: str, limits: TurnLimits, model: str, options: str
) -> tuple[TurnSampler, ThreadPoolExecutor, AuthorThreads]:
    """The environments of a worker, their conversations as tokens, and their threads: made once."""
    environments = load_environment(environment)
    source = TurnSampler(
        SimpleNamespace(tokenizer=tokenizer),
        environments,
        limits,
        model=model,
        options=OmegaConf.to_container(OmegaConf.create(options)),
    )
    threads = ThreadPoolExecutor(environments.at_once, "bestofk environment")
    return source, threads, AuthorThreads(environments.at_once)


@functools.lru_cache(maxsize=1024)
def first_of_group(uid: str) -> list[OpenTrajectory]:
    """The first trajectory of a prompt, once there is one: a worker plays all its siblings."""
    return []


def shown_to_group(row: OpenTrajectory, uid: Any) -> Prompt:
    """The prompt with what `reset` adds; raises where a sibling was shown another problem.

    Args:
        uid: of its group; None where verl names none.
    """
    siblings = [] if uid is None else first_of_group(str(uid))
    if not siblings and row.ended_by != "broken":
        siblings.append(replace(row, tokens=[], own=[], log_probs=[], messages=[]))
    return with_observation([row, *siblings])
