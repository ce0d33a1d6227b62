"""Trajectories drawn turn by turn: token-exact, reproducible, bounded, and nothing lost."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from bestofk.environments.author_class import (
    as_environment,
    load_environment,
    recorded_name,
    tools_of,
)
from bestofk.environments.limits import TurnLimits
from bestofk.environments.rollout import TurnSampler
from bestofk.learning import Learner
from bestofk.rewards import TooManyUnscored, UnscoredGuard
from bestofk.sampling import Sampling
from bestofk.sampling.decode import ModelSampler
from bestofk.types import Prompt
from environments.chat_models import Echo, Guess, Script, model, tokenizer
from environments.exact_rows import gap_of_own_tokens

SAMPLING = Sampling(samples_per_prompt=4, max_new_tokens=160)
LONG = SAMPLING.changed(max_new_tokens=1000)


def asked(number, **spec):
    return Prompt(f"p{number}", ({"role": "user", "content": f"Question {number}?"},), "t", spec)


ECHOED = [asked(number) for number in range(3)]


def sampler(environment=Echo, made=None, limits=None, **options):
    made = made or ModelSampler(model(), tokenizer())
    return TurnSampler(
        made, as_environment(environment), TurnLimits(**(limits or {})), model="MODEL", **options
    )


def call(name, **arguments):
    inside = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>{inside}</tool_call><|im_end|>"


def scripted(write, environment=Guess, limits=None, sampling=LONG, secret=7):
    """One group of a scripted model."""
    source = sampler(environment, Script(write), limits)
    (group,) = source.sample([asked(0, secret=secret)], seed=1, sampling=sampling)
    return group


@pytest.fixture(scope="module")
def groups():
    return sampler().sample(ECHOED, seed=5, sampling=SAMPLING)


def test_log_probs_are_those_of_a_plain_forward_pass_over_the_same_tokens(groups):
    policy = model().eval()
    several = 0
    for group in groups:
        for each in group.trajectories:
            several += each.conversation.turns > 1
            ids = torch.tensor([[*group.prompt_tokens, *each.tokens.tolist()]])
            with torch.no_grad():
                steps = policy(ids).logits[0, len(group.prompt_tokens) - 1 : -1].log_softmax(-1)
            plain = steps.gather(-1, ids[0, len(group.prompt_tokens) :, None])[:, 0].numpy()
            np.testing.assert_allclose(each.own_log_probs, plain[each.own], atol=1e-4)
            assert not each.log_probs[~each.own].any()
    assert several > 6


def test_the_learner_scores_what_was_drawn(groups):
    learner = Learner(model())
    scored = learner.log_probs(groups)
    for group, rows in zip(groups, scored.tokens, strict=True):
        for each, row in zip(group.trajectories, rows, strict=True):
            np.testing.assert_allclose(each.own_log_probs, row, atol=1e-4)
    stats = learner.step(groups, np.ones((3, 4)))
    assert stats["tokens"] == sum(each.drawn for one in groups for each in one.trajectories)
    assert stats["sampler_gap_max"] < 1e-4


def test_the_tokens_are_the_prompt_the_messages_and_what_the_template_writes_between(groups):
    def shown(ids):
        return tokenizer().decode(ids, skip_special_tokens=True)

    between = {"assistant": "\nuser\n", "user": "\nassistant\n"}
    for group in groups:
        for each in group.trajectories:
            *before, last = each.conversation.messages
            talk = "".join(message["content"] + between[message["role"]] for message in before)
            whole = shown(group.prompt_tokens) + talk + last["content"]
            assert shown([*group.prompt_tokens, *each.tokens.tolist()]) == whole
            assert each.text == last["content"]


def test_draws_do_not_depend_on_the_other_prompts_nor_on_who_answers_first(groups):
    class Slow(Echo):
        def __call__(self, text):
            time.sleep(0.01 * (len(text) % 3))
            return super().__call__(text)

    assert sampler(Slow).sample(ECHOED, seed=5, sampling=SAMPLING) == groups
    alone = sampler().sample(ECHOED[1:2], seed=5, sampling=SAMPLING)[0]
    for here, there in zip(alone.trajectories, groups[1].trajectories, strict=True):
        np.testing.assert_array_equal(here.tokens, there.tokens)
    assert sampler().sample(ECHOED, seed=6, sampling=SAMPLING) != groups


def test_a_first_turn_is_what_a_sampler_of_one_turn_draws(groups):
    single = ModelSampler(model(), tokenizer()).sample(ECHOED, seed=5, sampling=SAMPLING)
    for one, several in zip(single, groups, strict=True):
        for short, long in zip(one.trajectories, several.trajectories, strict=True):
            first = long.tokens[: len(short.tokens)]
            np.testing.assert_array_equal(first, short.tokens[: len(first)])


def test_tools_answer_and_the_environment_pays():
    def write(text):
        if "lower" not in text:
            return call("guess", number=9)
        return call("guess", number=7) if "right" not in text else "It is 7.<|im_end|>"

    group = scripted(write)
    assert group.prompt.text[-1]["content"] == "Question 0? Below 10."
    for each in group.trajectories:
        talk = each.conversation
        assert [message["role"] for message in talk.messages] == [
            "assistant", "tool", "assistant", "tool", "assistant",
        ]  # fmt: skip
        assert (talk.ended_by, talk.turns, talk.tool_calls, talk.tool_errors) == ("answer", 3, 2, 0)
        assert talk.verdict.reward == 0.5
        assert each.finish_reason == "stop"
        assert each.text == "It is 7."


def test_functions_are_tools_without_a_class():
    def double(number: int) -> int:
        """Double a number.

        Args:
            number: Any.
        """
        return 2 * number

    async def half(number: int) -> float:
        """Halve a number.

        Args:
            number: Any.
        """
        await asyncio.sleep(0)
        return number / 2

    replies = {"double": "42", "half": "10.5"}
    for name, reply in replies.items():
        group = scripted(
            lambda text, name=name: "ok<|im_end|>" if "_resp" in text else call(name, number=21),
            [double, half],
        )
        talk = group.trajectories[0].conversation
        assert talk.messages[1] == {"role": "tool", "name": name, "content": reply}
        assert talk.verdict is None


class Bad(Guess):
    """Fails where it can."""

    def __init__(self):
        if threading.current_thread().name.startswith("bestofk") and Bad.makes_no_more:
            raise OSError("no socket")

    makes_no_more = False

    def reset(self, secret, where="", **row):
        self.where = where
        if where == "reset" and threading.current_thread().name.startswith("bestofk"):
            raise OSError("no disk")
        return super().reset(secret)

    def guess(self, number: int) -> str:
        """Guess.

        Args:
            number: Your guess.
        """
        if self.where == "endless":
            time.sleep(5)
        if self.where == "long":
            return "x" * 10_000_000
        if self.where == "no text":
            return "\ud800"
        if self.where in ("exit", "cancel"):
            raise SystemExit("bye") if self.where == "exit" else asyncio.CancelledError("gone")
        raise KeyError(number)

    def get_reward(self):
        return "good" if self.where == "reward" else 1.0 / 0.0 if self.where == "raise" else 0.5


def once(text):
    return "So.<|im_end|>" if "_resp" in text else call("guess", number=1)


def bad(where, write=once, sampling=SAMPLING):
    source = sampler(Bad, Script(write), {"tool_seconds": 0.2})
    prompt = asked(0, secret=7, where=where)
    return source.sample([prompt], seed=1, sampling=sampling)[0].trajectories


@pytest.mark.parametrize(
    ("where", "told", "ended_by"),
    [
        ("tool", '{"error": "1"}', "answer"),
        ("exit", '{"error": "bye"}', "answer"),
        ("cancel", '{"error": "gone"}', "answer"),
        ("endless", '{"error": "no answer within 0.2 s"}', "answer"),
        ("long", None, "length"),
    ],
)
def test_a_tool_that_fails_is_a_message_to_the_model_and_counts(where, told, ended_by):
    for each in bad(where):
        talk = each.conversation
        assert talk.ended_by == ended_by
        assert talk.verdict.reward == 0.5
        if told:
            assert talk.messages[1]["content"] == told
            assert talk.tool_errors == 1
        else:
            assert len(talk.messages) == 1
            assert each.finish_reason == "length"


def test_calls_of_one_message_share_its_time():
    """The first never ends; none of the others leaves a thread behind."""
    one = call("guess", number=1)
    many = one.removesuffix("<|im_end|>") * 30 + "<|im_end|>"
    before = threading.active_count()
    sampling = SAMPLING.changed(max_new_tokens=9000)
    for each in bad("endless", lambda text: once(text).replace(one, many), sampling):
        talk = each.conversation
        assert (talk.tool_calls, talk.tool_errors, talk.ended_by) == (30, 30, "answer")
    assert threading.active_count() <= before + 8


def test_a_reply_is_text_that_a_file_can_hold():
    for each in bad("no text"):
        assert each.conversation.messages[1]["content"] == "?"


def test_what_an_environment_does_to_its_row_reaches_no_sibling_and_no_later_step():
    class Taken(Guess):
        def reset(self, numbers, **row):  # type: ignore[override]
            self.numbers = numbers

        def take(self) -> str:
            """Take the last number."""
            return str(self.numbers.pop())

        def get_reward(self):
            return float(len(self.numbers))

    source = sampler(Taken, Script(lambda t: "a<|im_end|>" if "_resp" in t else call("take")))
    prompt = asked(0, numbers=[1, 2, 3])
    for _ in range(2):
        (group,) = source.sample([prompt], seed=1, sampling=LONG)
        for each in group.trajectories:
            assert each.conversation.messages[1]["content"] == "3"
            assert each.conversation.verdict.reward == 2.0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (call("gues", number=1), "no tool 'gues'; have guess"),
        (call("guess", nummer=1), "unexpected keyword argument 'nummer'"),
        (call("reset", secret=1), "no tool 'reset'"),
        (call("get_reward"), "no tool 'get_reward'"),
        (call("__class__"), "no tool '__class__'"),
        ("<tool_call>{<|im_end|>", "no </tool_call>"),
    ],
)
def test_a_call_that_cannot_be_made_is_told_to_the_model(text, told):
    group = scripted(lambda shown: "Well.<|im_end|>" if "_resp" in shown else text)
    talk = group.trajectories[0].conversation
    assert told in json.loads(talk.messages[1]["content"])["error"]
    assert (talk.tool_errors, talk.ended_by, talk.verdict.reward) == (1, "answer", 0.0)


@pytest.mark.parametrize("where", ["reset", "reward", "raise"])
def test_only_a_failure_of_the_environment_itself_is_unscored(where):
    for each in bad(where):
        assert each.drawn > 0
        assert each.conversation.verdict.status == "unscored"
        assert each.conversation.ended_by == ("broken" if where == "reset" else "answer")


def test_a_class_that_cannot_be_made_any_more_makes_its_trajectories_unscored(monkeypatch):
    source = sampler(Bad, Script(lambda text: "a<|im_end|>"))
    monkeypatch.setattr(Bad, "makes_no_more", True)
    (group,) = source.sample([asked(0, secret=7)], seed=1, sampling=SAMPLING)
    verdicts = [each.conversation.verdict for each in group.trajectories]
    assert {each.conversation.ended_by for each in group.trajectories} == {"broken"}
    with pytest.raises(TooManyUnscored) as stopped:
        UnscoredGuard(share=0.0).check(verdicts)
    place = rf"Bad raised at {__file__}:\d+: OSError: no socket"
    assert re.search(place, str(stopped.value))
    assert "verifier" not in str(stopped.value)


def test_an_environment_that_raises_when_called_tells_the_model():
    class Fragile(Echo):
        def __call__(self, text):
            reply = super().__call__(text)
            return reply if len(self.heard) > 1 else str(1 / 0)

    group = scripted(lambda text: "a<|im_end|>", Fragile)
    talk = group.trajectories[0].conversation
    assert talk.messages[1]["content"] == '{"error": "division by zero"}'
    assert (talk.ended_by, talk.tool_errors, talk.turns) == ("environment", 1, 3)


def endless(text):
    return call("guess", number=1)


@pytest.mark.parametrize(
    ("write", "limits", "length", "ended_by", "turns"),
    [
        (endless, {"turns": 2}, 1000, "turns", 2),
        (endless, {"turns": 1}, 1000, "turns", 1),
        (endless, {"turns": 99}, 250, "length", 2),
        (lambda text: "a" * 50, {}, 1000, "length", 1),
        (lambda text: "a" * 50, {"turn_tokens": 20}, 1000, "turn_tokens", 1),
        (lambda text: "a" * 50, {"own_tokens": 20}, 1000, "own_tokens", 1),
        (lambda text: "a" * 50, {"own_tokens": 20, "turn_tokens": 20}, 1000, "own_tokens", 1),
        (endless, {"own_tokens": 120}, 1000, "own_tokens", 2),
        (endless, {}, 30, "length", 1),
    ],
)
def test_every_limit_ends_a_trajectory_and_has_its_name(write, limits, length, ended_by, turns):
    sampling = SAMPLING.changed(max_new_tokens=length)
    if ended_by == "length" and turns == 1 and length == 1000:
        sampling = sampling.changed(max_new_tokens=50)
    for each in scripted(write, limits=limits, sampling=sampling).trajectories:
        talk = each.conversation
        assert (talk.ended_by, talk.turns) == (ended_by, turns)
        assert len(each.tokens) <= sampling.max_new_tokens
        assert each.drawn <= (limits.get("own_tokens") or 1000)
        assert each.own[-1]
        assert talk.messages[-1]["role"] == "assistant"


def test_the_last_message_reaches_the_environment_though_its_answer_is_not_shown():
    group = scripted(lambda text: call("guess", number=7), limits={"turns": 1})
    talk = group.trajectories[0].conversation
    assert talk.verdict.reward == 1.0
    assert (len(talk.messages), talk.ended_by) == (1, "turns")


def test_a_reply_that_does_not_fit_into_the_context_ends_the_trajectory():
    """The model has fewer positions than the trajectory may have tokens; ten million letters are
    not tokenised to see it."""
    began = time.process_time()
    source = sampler(Bad, Script(endless), context=400)
    (group,) = source.sample([asked(0, secret=7, where="long")], seed=1, sampling=LONG)
    for each in group.trajectories:
        assert (each.conversation.ended_by, len(each.conversation.messages)) == ("length", 1)
        assert len(group.prompt_tokens) + len(each.tokens) <= 400
    assert time.process_time() - began < 5


def test_a_long_prompt_may_be_drawn_beside_short_ones():
    """The model has no positions for the longest turn after the longest prompt."""
    words, end = len(tokenizer()), tokenizer().eos_token_id
    few = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=words, n_positions=80, n_embd=32, n_layer=1, n_head=2, eos_token_id=end
        )
    )
    asked = [Prompt(f"p{n}", ({"role": "user", "content": "x" * n},), "t") for n in (40, 5)]
    groups = sampler(made=ModelSampler(few, tokenizer()), context=80).sample(
        asked, seed=1, sampling=SAMPLING
    )
    for group in groups:
        longest = max(len(each.tokens) for each in group.trajectories)
        assert len(group.prompt_tokens) + longest == 80
    assert gap_of_own_tokens(few.eval(), groups, SAMPLING) < 1e-4


def test_ten_thousand_calls_end_in_time():
    many = call("guess", number=1).removesuffix("<|im_end|>") * 5_000 + "<|im_end|>"
    sampling = SAMPLING.changed(samples_per_prompt=1, max_new_tokens=1_000_000)
    group = scripted(lambda text: many, sampling=sampling, limits={"turns": 2})
    talk = group.trajectories[0].conversation
    assert (talk.ended_by, talk.tool_calls) == ("turns", 10_000)


def test_what_an_instance_knows_reaches_no_sibling():
    class Secret(Guess):
        def reset(self, secret, trajectory_seed=0, **row):
            self.code = trajectory_seed
            return super().reset(secret)

        def show(self) -> str:
            """Show the secret."""
            return f"{self.code} {vars(self)}"

        def get_reward(self):
            return float(self.code)

    group = scripted(lambda text: "a<|im_end|>" if "_resp" in text else call("show"), Secret)
    talks = [each.conversation for each in group.trajectories]
    codes = [f"{talk.verdict.reward:.0f}" for talk in talks]
    assert len(set(codes)) == 4
    for own, talk in zip(codes, talks, strict=True):
        assert [code for code in codes if code in str(talk.messages)] == [own]


def test_samples_of_a_group_answer_one_problem():
    class Varied(Guess):
        made = 0

        def reset(self, secret, **row):
            Varied.made += 1
            return f" {Varied.made}"

    message = "reset of Varied returned different texts for the samples of 'p0'"
    with pytest.raises(ValueError, match=message):
        scripted(lambda text: "a<|im_end|>", Varied)


def test_a_seed_of_the_trajectory_is_its_own_and_the_same_again():
    class Dice(Echo):
        def reset(self, trajectory_seed=0):
            super().reset()
            self.seed = trajectory_seed

        def get_reward(self):
            return float(self.seed)

    def seeds():
        source = sampler(Dice, Script(lambda text: "a<|im_end|>"))
        groups = source.sample(ECHOED, seed=1, sampling=SAMPLING)
        rows = [each.conversation.verdict.reward for one in groups for each in one.trajectories]
        assert len(set(rows)) == 12
        return rows

    assert seeds() == seeds()


def test_a_row_chooses_among_environments():
    source = sampler({"guess": Guess, "echo": Echo}, Script(lambda text: "a<|im_end|>"))
    prompts = [asked(0, environment="guess", secret=1), asked(1, environment="echo")]
    groups = source.sample(prompts, seed=1, sampling=SAMPLING)
    ends = [group.trajectories[0].conversation.ended_by for group in groups]
    assert ends == ["answer", "environment"]
    with pytest.raises(ValueError, match="unknown environment of 'p2' 'ecko'; did you mean 'echo'"):
        source.sample([asked(2, environment="ecko")], seed=1, sampling=SAMPLING)


def test_what_a_run_records_of_an_environment_names_it_again():
    sources: list[Any] = [Guess, {"guess": Guess, "echo": Echo}, [call, asked]]
    for source in sources:
        again = load_environment(recorded_name(source))
        assert again.makers.keys() == as_environment(source).makers.keys()
        for name, make in again.makers.items():
            assert tools_of(make()).keys() == tools_of(as_environment(source).makers[name]()).keys()
    with pytest.raises(
        ValueError, match=r"with names \(a=file.py:A,b=file.py:B; in Python a dict\)"
    ):
        as_environment([Guess, Echo])


def test_plain_text_is_continued_as_it_is():
    class More(Echo):
        def __call__(self, text):
            return super().__call__(text) and "b=" if not self.heard else None

    source = sampler(More, Script(lambda text: "3\n", template=None))
    sampling = SAMPLING.changed(stop=("\n",))
    (group,) = source.sample([Prompt("p", "a=", "t")], seed=1, sampling=sampling)
    for each in group.trajectories:
        assert source.sampler.tokenizer.decode(each.tokens.tolist()) == "3\nb=3\n"
        assert each.own.tolist() == [True, True, False, False, True, True]
        assert each.text == "3"


def test_environments_that_cannot_be_used_say_why():
    with pytest.raises(ValueError, match="Nothing has no reset"):
        as_environment(type("Nothing", (), {}))
    with pytest.raises(ValueError, match="Silent has nothing that answers the model"):
        as_environment(type("Silent", (), {"reset": lambda self: None}))
    methods = {"reset": lambda self: None, "__call__": lambda self, message: None}
    with pytest.raises(ValueError, match=r"write def __call__\(self, text\)"):
        as_environment(type("Renamed", (), methods))
    with pytest.raises(ValueError, match=r"made without arguments, .* raised TypeError: .* 'path'"):
        as_environment(type("Made", (), {**methods, "__init__": lambda self, path: None}))
    with pytest.raises(ValueError, match=r"Held has at_once = 0: .* at least 1"):
        as_environment(type("Held", (), {**methods, "at_once": 0}))
    for source in ("__main__:Typed", f"{__name__}:test.<locals>.Here"):
        with pytest.raises(
            ValueError, match=r"resume=FOLDER, environment=...\)\), or move it into"
        ):
            load_environment(source)
    with pytest.raises(ValueError, match=r"'guess.py' names no class: write guess.py:Class"):
        as_environment("guess.py")
    with pytest.raises(ValueError, match="an environment is a class, a list of functions"):
        as_environment(7)
    with pytest.raises(ValueError, match=r"pass Guess, not one made of it"):
        as_environment(Guess())
    for functions in ([], [len, len]):
        with pytest.raises(ValueError, match="tools are functions with different names"):
            as_environment(functions)
    with pytest.raises(ValueError, match="reset of Guess takes secret, and the row of 'p0' has x"):
        sampler(Guess).sample([asked(0, x=1)], seed=1, sampling=SAMPLING)
    with pytest.raises(ValueError, match="positions for 20"):
        sampler(context=20).sample(ECHOED, seed=1, sampling=SAMPLING)
