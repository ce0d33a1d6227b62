"""Tools, environments and rollout functions in TRL: masks, groups, advantages, ratios, updates.

The turns are scripted, so that every row calls its tool as planned; TRL parses the calls, runs the
tools and builds the rows. What is expected is computed by one plain forward pass of each row.
"""

import atexit
import json
import re
import time
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("trl", reason="TRL is not installed here: pip install 'bestofk[trl]'")

from datasets import Dataset
from trl import GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template
from trl.trainer.utils import shutdown_event_loop_in_daemon

import bestofk
from adapters.trl_runs import PROMPTS, Inner, config, prompts, trainer
from bestofk.adapters.trl import BestOfKTrainer, RolloutsWithReplies, log_best_of_k
from bestofk.adapters.trl.grpo_rows import log_ratios
from bestofk.environments.author_class import as_environment
from bestofk.environments.limits import TurnLimits
from bestofk.environments.rollout import TurnSampler
from bestofk.models import tiny
from bestofk.objectives import ObjectiveWarning
from bestofk.sampling import Sampling
from bestofk.types import Prompt
from environments.chat_models import CHATML, Guess, Replay, Script

pytestmark = [
    pytest.mark.filterwarnings("ignore:You are using '(environment_factory|rollout_func)'"),
    pytest.mark.filterwarnings("ignore:num_iterations="),  # a second pass is biased
]
N = 4
QUESTIONS = ["6 and 7?", "8 and 9?"]


def chat_model(template=qwen3_chat_template):
    """A model of random weights with the tokenizer and the chat template of a tool user."""
    tokenizer = tiny.tokenizer()
    tokenizer.add_special_tokens(
        {"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]}
    )
    tokenizer.model_max_length = 4096
    tokenizer.chat_template = template
    model = tiny.untrained(hidden=16, layers=1, heads=2, inner=32, length=4096)
    model.resize_token_embeddings(len(tokenizer))
    model.generation_config.eos_token_id = model.config.eos_token_id = tokenizer.eos_token_id
    return model, tokenizer


def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a * b


class Board:
    """An environment whose problem comes from the row, and which owns the reward."""

    def reset(self, **row):
        self.numbers, self.guess = row["numbers"], 0
        return f" Numbers: {self.numbers[0]} {self.numbers[1]}."

    def play(self, guess: int) -> str:
        """Guess the product.

        Args:
            guess: The product.
        """
        self.guess = guess
        return "high" if guess > self.numbers[0] * self.numbers[1] else "not high"

    def get_reward(self):
        return 1.0 / (1 + abs(self.guess - self.numbers[0] * self.numbers[1]))


class Drawn(Board):
    """An environment that makes its own problem: each sample gets another."""

    made = 0

    def reset(self, **row):
        Drawn.made += 1
        return super().reset(numbers=(Drawn.made, 2))


def scripted(first, last):
    """A trainer whose turns are written: `first(row)` calls a tool or not, `last(row)` answers."""

    class Scripted(BestOfKTrainer):
        def _generate_single_turn(self, prompt_ids, *_, **__):
            told = [self._tokenizer.decode(ids) for ids in prompt_ids]
            texts = [
                last(text) if "<tool_response>" in text else first(row, text)
                for row, text in enumerate(told)
            ]
            ids = [self._tokenizer(text + "<|im_end|>")["input_ids"] for text in texts]
            return ids, None

    return Scripted


def call(name, **arguments):
    inside = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{inside}\n</tool_call>"


def rewarded(completions, **_):
    """By length of the last message, in [0, 1]."""
    return [1 / (1 + len(messages[-1]["content"])) for messages in completions]


def made(
    cls,
    tmp_path,
    judges,
    *,
    questions=QUESTIONS,
    columns=None,
    template=qwen3_chat_template,
    **named,
):
    model, tokenizer = chat_model(template)
    data = {"prompt": [[{"role": "user", "content": text}] for text in questions]}
    named = {"train_dataset": Dataset.from_dict(data | (columns or {}))} | named
    inner = Inner()
    options = {
        "num_generations": N, "per_device_train_batch_size": 2 * N, "num_iterations": 2,
        "gradient_accumulation_steps": 1, "max_steps": 2, "learning_rate": 0.02,
        "loss_type": "luspo", "max_completion_length": 512, "shuffle_dataset": False,
    }  # fmt: skip
    run = inner.run = cls(
        model, judges, config(tmp_path, **options), processing_class=tokenizer,
        objective="max@2", callbacks=[inner], ess_floor=0.0, **named,
    )  # fmt: skip
    return run, inner


def rows_of(run):
    """(prompt ids, completion ids, own) of every row of the last batch, without padding."""
    for batch in run._buffered_inputs:
        for at in range(len(batch["prompt_ids"])):
            shown, drawn = batch["prompt_mask"][at].bool(), batch["completion_mask"][at].bool()
            own = batch["tool_mask"][at][drawn].bool()
            yield batch["prompt_ids"][at][shown], batch["completion_ids"][at][drawn], own


def log_prob(model, prompt, completion, own):
    """log π of the tokens that the policy drew, given all that stands before them."""
    logits = model(torch.cat([prompt, completion])[None]).logits[0, len(prompt) - 1 : -1]
    each = logits.log_softmax(-1).gather(1, completion[:, None])[:, 0]
    return each[own].sum()


def assert_exact(run, inner, rewards):
    """Two optimiser steps on one batch: the second by the ratios of the policy's own tokens."""
    rewards = np.reshape(rewards, (2, N))
    rows = list(rows_of(run))
    policy = chat_model()[0]
    old = torch.stack([log_prob(policy, *row) for row in rows]).detach()
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.02)
    for step, seen in enumerate(inner.seen):
        now = torch.stack([log_prob(policy, *row) for row in rows])
        ratio = (now - old).detach().numpy().reshape(2, N)
        weights = bestofk.advantages(rewards, "max@2", log_ratio=ratio).reshape(-1)
        np.testing.assert_allclose(seen, weights, rtol=1e-3, atol=1e-4)
        assert np.abs(weights).max() > 0.01
        assert (np.abs(ratio).max() > 1e-3) == (step > 0)
        optimizer.zero_grad()
        (-(torch.tensor(weights) * now).mean()).backward()
        optimizer.step()
    for ours, theirs in zip(policy.parameters(), run.model.parameters()):
        torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-5)
    moved = torch.stack([log_prob(policy, *row) for row in rows]) - old
    np.testing.assert_allclose(
        log_ratios(run, run._buffered_inputs), moved.detach().numpy(), rtol=1e-3, atol=1e-3
    )


def own_texts(run, rows):
    """What the policy wrote and what it was told, of each row."""
    decode = run._tokenizer.decode
    return [(decode(ids[own]), decode(ids[~own])) for _, ids, own in rows]


def test_tools_answer_in_tokens_that_are_not_the_policys(tmp_path):
    """Half of the rows call a tool; another calls one that fails."""
    rewards = []

    def judge(**row):
        rewards.extend(rewarded(**row))
        return rewards

    def first(row, _):
        if row == 4:
            return call("divide")
        return call("multiply", a=row, b=7) if row % 2 else "wrong" * row

    cls = scripted(first, lambda text: "it is " + re.findall(r"<tool_response>\n(.*)\n", text)[-1])
    run, inner = made(cls, tmp_path, judge, tools=[multiply])
    run.train()
    rows = list(rows_of(run))
    for row, (own, told) in enumerate(own_texts(run, rows)):
        if row % 2:
            assert own == first(row, "") + f"<|im_end|>it is {7 * row}<|im_end|>"
            assert re.search(rf"<tool_response>\n{7 * row}\n</tool_response>", told)
            assert told.endswith("<|im_start|>assistant\n")
        elif row == 4:
            assert "it is {'error'" in own
            assert "Tool divide not found" in told
        else:
            assert (own, told) == ("wrong" * row + "<|im_end|>", "")
    assert_exact(run, inner, rewards)


def test_an_environment_that_gets_its_problem_from_the_row_forms_groups(tmp_path):
    cls = scripted(lambda row, _: call("play", guess=40 + 5 * row), lambda _: "done")
    columns = {"numbers": [(6, 7), (8, 9)]}
    run, inner = made(cls, tmp_path, [], columns=columns, environment_factory=Board)
    run.train()
    products = [42] * N + [72] * N
    rewards = [1 / (1 + abs(40 + 5 * row - product)) for row, product in enumerate(products)]
    shown = [run._tokenizer.decode(ids) for ids, *_ in rows_of(run)]
    assert ["Numbers: 6 7." in text for text in shown] == [True] * N + [False] * N
    for row, (own, told) in enumerate(own_texts(run, rows_of(run))):
        assert own == call("play", guess=40 + 5 * row) + "<|im_end|>done<|im_end|>"
        assert ("not high" in told) == (40 + 5 * row <= products[row])
    assert_exact(run, inner, rewards)


def drawn_by(source, secrets):
    """The prompt tokens and the trajectory of each sample that our own sampler draws."""
    asked = [
        Prompt(text, ({"role": "user", "content": text},), "t", {"secret": secret})
        for text, secret in zip(QUESTIONS, secrets, strict=True)
    ]
    sampling = Sampling(samples_per_prompt=N, max_new_tokens=512)
    groups = source.sample(asked, seed=0, sampling=sampling)
    return [(group.prompt_tokens, each) for group in groups for each in group.trajectories]


def test_the_same_class_gives_the_same_trajectories_and_advantages_as_bestofk_train(tmp_path):
    """Token for token, with the same script: prompts, own tokens, rewards, advantages."""
    secrets = [7, 2]

    def first(row, _):
        return call("guess", number=row % 5 + 4) if row % 4 else "No idea."

    class ByRow(Script):
        def continue_from(self, texts, draws, sampling):
            for place, text in enumerate(texts):
                shown = self.tokenizer.decode(text)
                rows = range(place * sampling.n, (place + 1) * sampling.n)
                if "<tool_response>" in shown:
                    written = ["done" for _ in rows]
                else:
                    written = [first(row, shown) for row in rows]
                ids = [self.tokenizer(each + "<|im_end|>")["input_ids"] for each in written]
                yield place, [(np.array(each), np.zeros(len(each))) for each in ids]

    run, inner = made(
        scripted(first, lambda _: "done"), tmp_path, [], columns={"secret": secrets},
        environment_factory=Guess,
    )  # fmt: skip
    run.train()
    script = ByRow(lambda _: "")
    script.tokenizer = chat_model()[1]
    script.ends = frozenset({script.tokenizer.eos_token_id})
    source = TurnSampler(script, as_environment(Guess), TurnLimits(), model="m")
    ours = drawn_by(source, secrets)
    for (prompt, each), (asked_ids, ids, own) in zip(ours, rows_of(run), strict=True):
        assert list(prompt) == asked_ids.tolist()
        assert each.tokens.tolist() == ids.tolist()
        assert each.own.tolist() == own.tolist()
    rewards = np.reshape([each.verdict.reward for _, each in ours if each.verdict], (2, N))
    weights = bestofk.advantages(rewards, "max@2").reshape(-1)
    np.testing.assert_allclose(inner.seen[0], weights, rtol=1e-3, atol=1e-4)
    assert np.abs(weights).max() > 0.01


class Hints:
    """Answers each message with its length; its own rule of when a trajectory ends. One instance
    answers at a time."""

    at_once, answering, most = 1, 0, 0

    def reset(self, **row):
        self.secret, self.heard = row["secret"], list[str]()
        return f" Say {self.secret} letters."

    def __call__(self, text):
        Hints.answering += 1
        Hints.most = max(Hints.most, Hints.answering)
        time.sleep(0.01)
        Hints.answering -= 1
        self.heard.append(text)
        left = self.secret - sum(map(len, self.heard))
        return f"{left} letters are missing." if left > 0 and len(self.heard) < 4 else None

    def get_reward(self):
        return 1 / (1 + abs(self.secret - sum(map(len, self.heard))))


def test_an_environment_that_is_called_runs_in_trl_as_in_bestofk_train(tmp_path):
    """Really drawn by TRL. Then `TurnSampler` gets the same tokens: the same prompts, masks,
    log-probs of the policy's own tokens, rewards and advantages, and the same updates."""
    secrets = [300, 450]
    judged: list[tuple[Any, Any]] = []

    def letters(completions, messages, **_):
        judged.extend(zip(completions, messages, strict=True))
        return [0.0] * len(completions)

    torch.manual_seed(4)
    run, inner = made(
        BestOfKTrainer, tmp_path, letters, columns={"secret": secrets}, template=CHATML,
        environment_factory=Hints,
    )  # fmt: skip
    run.train()
    assert Hints.most == 1
    rows = list(rows_of(run))
    own_runs = [np.count_nonzero(np.diff([0, *own.tolist()]) == 1) for *_, own in rows]
    assert max(own_runs) >= 3 > min(own_runs)
    for completion, messages in judged:
        assert completion == messages  # what TRL's reward functions get after tools, too
        assert [each["role"] for each in messages[:3]] == ["assistant", "user", "assistant"][
            : len(messages)
        ]

    tokenizer = chat_model(CHATML)[1]
    drawn = [
        (start.tolist(), ids.tolist(), own.tolist(), [-1.0] * len(ids)) for start, ids, own in rows
    ]
    source = TurnSampler(Replay(drawn, tokenizer), as_environment(Hints), TurnLimits(), model="m")
    ours = drawn_by(source, secrets)
    for (prompt, each), (asked_ids, ids, own), (_, said) in zip(ours, rows, judged, strict=True):
        assert list(prompt) == asked_ids.tolist()
        assert each.tokens.tolist() == ids.tolist()
        assert each.own.tolist() == own.tolist()
        assert each.conversation
        assert list(each.conversation.messages) == said
    rewards = [each.verdict.reward for _, each in ours if each.verdict]
    assert len(set(rewards)) > 3
    assert_exact(run, inner, rewards)


def test_environments_that_are_called_stop_at_trls_limits(tmp_path):
    rollouts = RolloutsWithReplies(TurnLimits(turns=2, turn_tokens=30))
    model, tokenizer = chat_model()
    data = {"prompt": QUESTIONS, "secret": [400, 900]}
    options = {"num_generations": N, "per_device_train_batch_size": 2 * N,
               "gradient_accumulation_steps": 1, "max_completion_length": 70}  # fmt: skip
    run = GRPOTrainer(
        model, talkative, config(tmp_path, **options), processing_class=tokenizer,
        rollout_func=rollouts, environment_factory=Quiet, train_dataset=Dataset.from_dict(data),
    )  # fmt: skip
    run.train()
    for _, ids, own in rows_of(run):
        assert len(ids) <= 70
        runs = "".join(map(str, own.int().tolist())).strip("0").split("0")
        assert all(len(each) <= 30 for each in runs)
        assert sum(map(bool, runs)) <= 2


def test_two_processes_play_until_the_last_row_of_either_has_ended(two_processes):
    first, second = two_processes["turns"]
    for rank, part in enumerate((first, second)):
        for shown, own in part["rows"]:
            turns = np.count_nonzero(np.diff([0, *own]) == 1)
            assert turns == (3 if shown == PROMPTS[2] else 1)
        assert any(shown == PROMPTS[2] for shown, _ in part["rows"]) == bool(rank)
    assert first["logged"] == second["logged"]
    assert np.abs(first["logged"]).max() > 0.001


class Quiet(Hints):
    """The same for prompts of plain text, to which nothing is added."""

    def reset(self, **row):
        self.secret, self.heard = row["secret"], list[str]()


def talkative(completions, messages, **_):
    return [float(len(each)) for each in messages]


@pytest.mark.parametrize(
    ("factory", "named", "said"),
    [
        ({"a": Hints, "b": Board}, {}, r"Hints is called .* there are tools \(play\) beside it"),
        (Hints, {"tools": [multiply]}, r"there are tools \(multiply\)"),
    ],
)
def test_environments_that_trl_cannot_play_together_are_an_error(tmp_path, factory, named, said):
    with pytest.raises(ValueError, match=said):
        made(BestOfKTrainer, tmp_path, [], environment_factory=factory, **named)


class Later(Hints):
    """Its reward comes from a coroutine, as TRL takes it."""

    async def get_reward(self):
        return float(len(self.heard[0]))


def test_an_asynchronous_reward_of_a_called_environment_joins_the_weighted_others(tmp_path):
    def lengths(completions, **_):
        return [float(len(talk[0]["content"])) for talk in completions]

    run, _ = made(
        BestOfKTrainer, tmp_path, lengths, columns={"secret": [30, 45]}, template=CHATML,
        environment_factory=Later,
    )  # fmt: skip
    run.reward_weights[0] = -1.0
    run.train()
    assert run.reward_func_names == ["lengths", "Later"]
    [line, _] = [each for each in run.state.log_history if "loss" in each]
    assert line["rewards/Later/mean"] == line["rewards/lengths/mean"] > 0
    assert np.abs(run._logs["advantages"]).max() == 0  # the one takes what the other gives
    atexit.unregister(shutdown_event_loop_in_daemon)
    shutdown_event_loop_in_daemon(run.async_loop_thread, run.async_loop)
    run.async_loop.close()


def test_environments_that_own_their_data_are_an_error_that_names_the_way_out(tmp_path):
    cls = scripted(lambda row, _: call("play", guess=row), lambda _: "done")
    with pytest.warns(ObjectiveWarning, match="environment_factory without train_dataset: reset"):
        run, _ = made(cls, tmp_path, [], environment_factory=Drawn, train_dataset=None)
    message = r"2 of 2 groups hold samples of different prompts.*Give train_dataset a row for each"
    with pytest.raises(ValueError, match=message):
        run.train()
    run, _ = made(cls, tmp_path, [], environment_factory=Drawn)  # with a dataset, which it ignores
    with pytest.raises(ValueError, match=message):
        run.train()


def test_the_logged_pass_at_k_of_another_trainer_needs_groups_too(tmp_path):
    class Plain(GRPOTrainer):
        _generate_single_turn = scripted(
            lambda row, _: call("play", guess=row), lambda _: "done"
        )._generate_single_turn

    model, tokenizer = chat_model()
    options = {"num_generations": N, "per_device_train_batch_size": 2 * N,
               "gradient_accumulation_steps": 1, "max_completion_length": 512}  # fmt: skip
    run = Plain(
        model, [], config(tmp_path, **options), processing_class=tokenizer,
        environment_factory=Drawn,
    )  # fmt: skip
    log_best_of_k(run)
    with pytest.raises(ValueError, match="2 of 2 groups hold samples of different prompts"):
        run.train()


def test_a_rollout_function_with_other_prompts_inside_a_group_is_an_error(tmp_path):
    def roll_out(texts, run):
        ids = [run.processing_class(text)["input_ids"] for text in texts]
        ids[3] = [*ids[3], 7]
        drawn = [[5, 6]] * len(texts)
        return {"prompt_ids": ids, "completion_ids": drawn, "logprobs": [[0.0] * 2] * len(texts)}

    named = {"rollout_func": roll_out, "train_dataset": prompts()}
    run = trainer(tmp_path, lambda completions, **_: [1.0] * len(completions), named=named)
    with pytest.raises(ValueError, match=r"1 of 2 groups hold.*returns the same prompt_ids for eq"):
        run.train()
