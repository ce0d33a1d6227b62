"""Environments as verl agent loops: verl's own worker, registry and postprocessing, without Ray.

The tokens are really drawn, from a small model. `TurnSampler` of `bestofk.train` then gets the same
tokens; tests of TRL compare with the same, for the same classes.
"""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not installed here: make test-adapters")
pytest.importorskip("verl.trainer.ppo.v1", reason="verl's V1 trainer needs TransferQueue")

import torch
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
from verl.workers.rollout.replica import TokenOutput

import bestofk
from adapters import verl_native as native
from bestofk.adapters.verl.self_check import check
from bestofk.environments.author_class import load_environment
from bestofk.environments.limits import TurnLimits
from bestofk.environments.rollout import TurnSampler
from bestofk.models import Policy, save
from bestofk.sampling import Sampling
from bestofk.sampling.decode import ModelSampler
from bestofk.types import Prompt
from environments.chat_models import Replay, model, tokenizer

N, LENGTH = 4, 600
SECRETS = [2, 4]
ROLLOUT = "actor_rollout_ref.rollout"
TURNS = [
    "algorithm.adv_estimator=bestofk", "+algorithm.bestofk.objective=max@2",
    f"{ROLLOUT}.agent.default_agent_loop=bestofk", f"{ROLLOUT}.n={N}",
    f"{ROLLOUT}.prompt_length=400", f"{ROLLOUT}.response_length={LENGTH}",
    f"{ROLLOUT}.calculate_log_probs=True", f"{ROLLOUT}.name=vllm",
    "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum",
    "actor_rollout_ref.actor.ppo_mini_batch_size=1024",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "chat"
    save(Policy(model(length=2048), tokenizer()), folder)
    return folder


class Server:
    """Draws with `ModelSampler`; with `calls`, two messages of three call Guess's tool. The same
    text gets another answer each time, in whatever order the texts come."""

    def __init__(self, calls: bool) -> None:
        self.sampler = ModelSampler(model(length=2048), tokenizer())
        self.calls, self.requests = calls, set[str]()
        self.times: Counter[tuple[int, ...]] = Counter()

    async def generate(self, request_id, *, prompt_ids, sampling_params, **_):
        text, length = tuple(prompt_ids), sampling_params["max_tokens"]
        self.requests.add(request_id)
        self.times[text] += 1
        seed = [self.times[text], *text]
        if self.calls and sum(seed) % 3:
            said: dict[str, Any] = {"name": "guess", "arguments": {"number": sum(seed) % 5}}
            inside = json.dumps(said)
            call = f"<tool_call>{inside}</tool_call><|im_end|>"
            ids = tokenizer()(call)["input_ids"][:length]
            return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids))
        draws = np.random.default_rng(seed).random((1, 1, length))
        sampling = Sampling(samples_per_prompt=1, max_new_tokens=length)
        ((_place, [(ids, log_probs)]),) = self.sampler.continue_from([text], draws, sampling)
        return TokenOutput(token_ids=ids.tolist(), log_probs=log_probs.tolist())


def configured(chat, *more):
    return native.composed(*TURNS, f"actor_rollout_ref.model.path={chat}", *more)


def batch_of(config, server):
    """What verl's worker makes of N rows of two prompts."""
    uids = [uuid4().hex for _ in SECRETS]
    columns: dict[str, list[Any]] = {
        "raw_prompt": [[{"role": "user", "content": f"{i}?"}] for i in range(2) for _ in range(N)],
        "uid": [uid for uid in uids for _ in range(N)],
        "session_id": list(range(N)) * 2,
        "extra_info": [{"secret": secret} for secret in SECRETS for _ in range(N)],
        "index": [i for i in range(2) for _ in range(N)],
    }
    arrays: dict[str, Any] = {}
    for name, values in columns.items():
        arrays[name] = np.empty(len(values), dtype=object)
        arrays[name][:] = values
    rows = DataProto.from_dict(tensors={"dummy": torch.zeros(2 * N, 1)}, non_tensors=arrays)
    return asyncio.run(AgentLoopWorker(config, server).generate_sequences(rows))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["Guess", "Echo"])
def test_a_class_gives_verl_the_trajectories_and_advantages_of_bestofk_train(chat, name):
    """Prompts, masks, log-probs, rewards and advantages, for the same tokens drawn."""
    file = f"environments.chat_models:{name}"
    config = configured(chat, f"+algorithm.bestofk.environment={file}")
    server = Server(calls=name == "Guess")
    out = batch_of(config, server)
    prompts, responses = out.batch["prompts"], out.batch["responses"]
    shown = out.batch["attention_mask"][:, :400].bool()
    written = out.batch["attention_mask"][:, 400:].bool()
    rows = [
        (
            prompts[i][shown[i]].tolist(),
            responses[i][written[i]].tolist(),
            out.batch["response_mask"][i][written[i]].bool().tolist(),
            out.batch["rollout_log_probs"][i][written[i]].tolist(),
        )
        for i in range(2 * N)
    ]
    turns = [np.count_nonzero(np.diff([0, *own]) == 1) for _, _, own, _ in rows]
    assert max(turns) >= 3
    assert len(server.requests) == 2 * N  # one for a trajectory, so that it stays on its server

    source = TurnSampler(Replay(rows, tokenizer()), load_environment(file), TurnLimits(), model="m")
    asked = [
        Prompt(f"{i}", ({"role": "user", "content": f"{i}?"},), "t", {"secret": secret})
        for i, secret in enumerate(SECRETS)
    ]
    sampling = Sampling(samples_per_prompt=N, max_new_tokens=LENGTH)
    groups = source.sample(asked, seed=0, sampling=sampling)
    ours = [(group.prompt_tokens, each) for group in groups for each in group.trajectories]
    for (start, each), (prompt, ids, own, log_probs) in zip(ours, rows, strict=True):
        assert list(start) == prompt
        assert each.tokens.tolist() == ids
        assert each.own.tolist() == own
        np.testing.assert_allclose(each.log_probs, log_probs, rtol=1e-6)
    rewards = np.array([each.verdict.reward for _, each in ours if each.verdict])
    given = out.batch["rm_scores"].sum(-1).double()
    np.testing.assert_allclose(given, rewards, rtol=1e-6)
    uids = [f"uid-{i}" for i in range(2) for _ in range(N)]
    data = native.batch(given, uids, out.batch["response_mask"])
    found = native.advantages(data, config.algorithm)
    assert (found[out.batch["response_mask"] == 0] == 0).all()  # also the environment's tokens
    weights = bestofk.advantages(rewards.reshape(2, N), "max@2").reshape(-1)
    assert np.abs(weights).max() > 0.01
    for row, mask, weight in zip(found, out.batch["response_mask"].bool(), weights, strict=True):
        np.testing.assert_allclose(row[mask], weight, rtol=1e-5, atol=1e-7)


class Broken:
    """One of four cannot be reset, and one of four does not know its reward."""

    made = 0

    def reset(self):
        Broken.made += 1
        self.number = Broken.made
        if self.number % 4 == 0:
            raise OSError("no such place")

    def __call__(self, text):
        return None

    def get_reward(self):
        return None if self.number % 4 == 1 else 1.0


class Varying(Broken):
    def reset(self):
        super().reset()
        return f" Problem {self.number}."


@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_reset_or_scored_is_nan_and_limits_hold(chat):
    config = configured(
        chat, f"+algorithm.bestofk.environment={__name__}:Broken",
        "+algorithm.bestofk.limits.turn_tokens=5",
    )  # fmt: skip
    out = batch_of(config, Server(calls=False))
    scores = out.batch["rm_scores"].sum(-1)
    assert scores.isnan().sum() == N
    assert (out.batch["response_mask"].sum(-1) <= 5).all()


@pytest.mark.filterwarnings("ignore")
def test_siblings_with_other_problems_are_an_error(chat):
    config = configured(chat, f"+algorithm.bestofk.environment={__name__}:Varying")
    with pytest.raises(ValueError, match="the samples of a group answer one problem"):
        batch_of(config, Server(calls=False))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (["+algorithm.bestofk.environment=no.such:Thing"], "no module 'no'"),
        ([], r"default_agent_loop=bestofk plays an environment: add \+algorithm.bestofk.env"),
        (
            ["+algorithm.bestofk.environment=python",
             f"{ROLLOUT}.agent.default_agent_loop=single_turn_agent"],
            "set actor_rollout_ref.rollout.agent.default_agent_loop=bestofk",
        ),
        (
            ["+algorithm.bestofk.environment=python", "+algorithm.bestofk.limits.turn=3"],
            "did you mean 'turns'",
        ),
    ],
)  # fmt: skip
def test_the_check_says_what_an_environment_needs(chat, changed, said):
    with pytest.raises(ValueError, match=said):
        check(configured(chat, *changed))
    assert "max@2" in check(configured(chat, "+algorithm.bestofk.environment=python"))


def test_the_settings_of_the_page_are_accepted(chat, tmp_path):
    page = Path(__file__).parents[2] / "docs" / "adapters" / "verl.md"
    block = page.read_text(encoding="utf-8").partition("\nturns=(")[2].partition("```")[0]
    given = " ".join(part.partition(")")[0] for part in block.split("=("))
    (tmp_path / "guess.py").write_text("from environments.chat_models import Guess\n")
    words = given.replace("/shared", str(tmp_path)).split()
    assert len(words) == 4
    config = native.composed(*TURNS, f"actor_rollout_ref.model.path={chat}", *words)
    assert "max@2" in check(config)
    assert config.algorithm.bestofk.limits.turns == 6
