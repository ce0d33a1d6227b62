"""Several turns in the group engine, by its plain twins on CPU, against the plain sampler."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bestofk
from bestofk.environments.author_class import as_environment
from bestofk.environments.limits import TurnLimits
from bestofk.environments.rollout import TurnSampler
from bestofk.models import Policy, save
from bestofk.sampling import Sampling
from bestofk.sampling.decode import ModelSampler
from bestofk.sampling.engine import plain_kernels
from bestofk.sampling.engine.group_sampler import GroupSampler
from bestofk.sampling.engine.operands import SlotField
from bestofk.sampling.engine.prefill import Prefill
from bestofk.sampling.engine.slots import SlotTable
from bestofk.training import setup
from bestofk.types import Group, Prompt
from environments import chat_models
from environments.chat_models import Echo, Guess, tokenizer
from policies import letters, table

SAMPLING = Sampling(samples_per_prompt=10, max_new_tokens=90)


def asked(number: int, **spec: Any) -> Prompt:
    return Prompt(f"p{number}", ({"role": "user", "content": f"Is {number} it?"},), "t", spec)


PROMPTS = [asked(number) for number in (1, 22, 333)]
TEXTS = [Prompt(f"p{number}", "abcdefghij"[: 2 + number], "t") for number in range(3)]


def model() -> Any:
    """Eight tokens end a message, so that most are short."""
    made = chat_models.model()
    ends = [tokenizer().eos_token_id, 60, 70, 80, 90, 100, 110, 120]
    made.generation_config.eos_token_id = ends
    return made


class Brief(Echo):
    """Three turns with few tokens between them."""

    def __call__(self, text: str) -> str | None:
        return super().__call__(text) and "On."


def source(made: Any, environment: Any = Brief, **limits: Any) -> TurnSampler:
    context = limits.pop("context", None)
    return TurnSampler(
        made, as_environment(environment), TurnLimits(**limits), model="MODEL", context=context
    )


def engine(**options: Any) -> GroupSampler:
    return GroupSampler(model(), tokenizer(), max_rows=16, **options)


def assert_same(found: list[Group], expected: list[Group]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.prompt_tokens == theirs.prompt_tokens
        for one, other in zip(ours.trajectories, theirs.trajectories, strict=True):
            assert one.tokens.tolist() == other.tokens.tolist()
            assert one.own.tolist() == other.own.tolist()
            assert (one.text, one.finish_reason) == (other.text, other.finish_reason)
            assert one.conversation == other.conversation
            np.testing.assert_allclose(one.log_probs, other.log_probs, atol=5e-5)


class Uneven(Brief):
    """Some answer late, by what the model wrote."""

    def __call__(self, text: str) -> str | None:
        time.sleep(0.02 * (len(text) % 3))
        return super().__call__(text)


@pytest.mark.parametrize(
    ("limits", "sampling"),
    [
        ({}, SAMPLING),
        ({"turn_tokens": 7}, SAMPLING),
        ({"own_tokens": 12}, SAMPLING),
        ({"turns": 2}, SAMPLING.changed(temperature=0.7, top_p=0.9, top_k=30)),
        ({"context": 100}, SAMPLING),
        ({}, SAMPLING.changed(stop=("a", "42"))),
        ({}, SAMPLING.changed(stop=tuple("etaoin shrdlu=123\n"), temperature=0.0)),
    ],
    ids=["plain", "turn tokens", "own tokens", "truncated", "context", "stop", "greedy"],
)
def test_trajectories_are_those_of_the_sampler_turn_by_turn(
    limits: dict[str, Any], sampling: Sampling
) -> None:
    """30 rows in 16 slots: parked, resumed in other slots, ended by every limit."""
    present = ModelSampler(model(), tokenizer())
    expected = source(present, **limits).sample(PROMPTS, seed=5, sampling=sampling)
    made = engine()
    found = source(made, Uneven, **limits).sample(PROMPTS, seed=5, sampling=sampling)
    assert made.reason is None
    assert made.plan is not None
    assert made.plan.slots == 16
    assert_same(found, expected)
    talks = [each.conversation for group in found for each in group.trajectories]
    assert sum(talk.turns > 1 for talk in talks if talk) >= 10
    assert made.check.agreement is None or made.check.agreement[1] < 1e-3


def test_fused_layers_and_plain_text_with_stop_strings_in_replies_too() -> None:
    class More(Echo):
        def __call__(self, text: str) -> str | None:
            return super().__call__(text) and "ca\nb=c"

    sampling = SAMPLING.changed(stop=("c", "da"))
    present = ModelSampler(model(), tokenizer(template=None))
    expected = source(present, More).sample(TEXTS, seed=5, sampling=sampling)
    made = GroupSampler(model(), tokenizer(template=None), max_rows=16, copied=True)
    assert_same(source(made, More).sample(TEXTS, seed=5, sampling=sampling), expected)
    assert made.resident.engine_model is not None
    assert made.resident.engine_model.fused_model is not None
    whole = [each for group in expected for each in group.trajectories]
    assert sum(not each.own.all() for each in whole) > 10


def test_tools_are_called_by_what_was_drawn() -> None:
    prompts = [asked(number, secret=7) for number in range(2)]
    expected = source(ModelSampler(model(), tokenizer()), Guess)
    found = source(engine(), Guess).sample(prompts, seed=1, sampling=SAMPLING)
    assert_same(found, expected.sample(prompts, seed=1, sampling=SAMPLING))


def test_a_one_turn_environment_draws_what_the_engine_draws_without() -> None:
    class Once(Echo):
        def __call__(self, text: str) -> str | None:
            return None

    plain = engine().sample(PROMPTS, seed=3, sampling=SAMPLING)
    found = source(engine(), Once).sample(PROMPTS, seed=3, sampling=SAMPLING)
    for ours, theirs in zip(found, plain, strict=True):
        for one, other in zip(ours.trajectories, theirs.trajectories, strict=True):
            assert one.tokens.tolist() == other.tokens.tolist()
            np.testing.assert_array_equal(one.log_probs, other.log_probs)


def test_no_row_waits_for_the_environment_of_another() -> None:
    """The first answer comes when ten others were asked twice: not if it is waited for."""
    lock, first_asked, second_asked = threading.Lock(), [0], threading.Semaphore(0)

    class Patient(Brief):
        def __call__(self, text: str) -> str | None:
            reply = super().__call__(text)
            with lock:
                is_first = not first_asked[0]
                first_asked[0] += 1
            if len(self.heard) == 2:
                second_asked.release()
            if is_first:
                assert all(second_asked.acquire(timeout=20) for _ in range(10))
            return reply

    found = source(engine(), Patient).sample(PROMPTS, seed=5, sampling=SAMPLING)
    expected = source(ModelSampler(model(), tokenizer())).sample(PROMPTS, seed=5, sampling=SAMPLING)
    assert_same(found, expected)  # no tool error among them


def test_a_row_that_waits_has_no_slot() -> None:
    """Nobody is answered before 28 rows were asked, and 16 have a slot."""
    lock, asked_rows, many = threading.Lock(), [0], threading.Event()

    class Together(Brief):
        def __call__(self, text: str) -> str | None:
            with lock:
                asked_rows[0] += 1
                if asked_rows[0] == 28:
                    many.set()
            assert many.wait(20)
            return super().__call__(text)

    found = source(engine(), Together).sample(PROMPTS, seed=5, sampling=SAMPLING)
    expected = source(ModelSampler(model(), tokenizer())).sample(PROMPTS, seed=5, sampling=SAMPLING)
    assert_same(found, expected)


def test_new_rows_begin_before_others_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their environments then work while there is something to decode."""
    admitted: list[int] = []
    admit = SlotTable.admit

    def noted(self: SlotTable, *args: Any, sequence: np.ndarray, **kwargs: Any) -> None:
        admitted.extend(sequence.tolist())
        admit(self, *args, sequence=sequence, **kwargs)

    monkeypatch.setattr(SlotTable, "admit", noted)
    source(engine()).sample(PROMPTS, seed=5, sampling=SAMPLING)
    assert admitted[:30] == list(range(30))
    assert len(admitted) > 40


@pytest.mark.parametrize("made", [engine, lambda: ModelSampler(model(), tokenizer())])
def test_a_class_bounds_how_many_of_its_instances_answer_at_once(made: Any) -> None:
    lock, busy, most = threading.Lock(), [0], [0]

    class Few(Brief):
        at_once = 3

        def __call__(self, text: str) -> str | None:
            with lock:
                busy[0] += 1
                most[0] = max(most[0], busy[0])
            time.sleep(0.01)
            with lock:
                busy[0] -= 1
            return None

    source(made(), Few).sample(PROMPTS, seed=5, sampling=SAMPLING.changed(samples_per_prompt=4))
    assert 1 < most[0] <= 3


def test_the_prompt_is_computed_once_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    run = Prefill.run

    def noted(self: Prefill, prompts: Any) -> list[int]:
        computed.extend(map(len, prompts))
        return run(self, prompts)

    monkeypatch.setattr(Prefill, "run", noted)
    groups = source(engine()).sample(PROMPTS, seed=5, sampling=SAMPLING)
    assert computed == [len(group.prompt_tokens) - 1 for group in groups]


def test_a_model_it_cannot_run_has_its_trajectories_from_transformers() -> None:
    """With environments of its own: what the engine asked before it gave up is forgotten."""
    chain = table(np.random.default_rng(0).normal(size=(26, 26)), end=1)

    class More(Echo):
        def __call__(self, text: str) -> str | None:
            return super().__call__(text) and "ab"

    expected = source(ModelSampler(chain, letters(26, end=1)), More)
    made = GroupSampler(chain, letters(26, end=1))
    with pytest.warns(UserWarning, match="the group engine does not run Table"):
        found = source(made, More).sample(TEXTS, seed=5, sampling=SAMPLING)
    assert_same(found, expected.sample(TEXTS, seed=5, sampling=SAMPLING))


def test_a_forced_token_is_taken_at_no_cost_and_ends_nothing() -> None:
    """Also the token that ends a message, and that with the largest id."""
    slots = torch.zeros(len(SlotField), 4, dtype=torch.int32)
    slots[SlotField.SEQUENCE] = torch.arange(4)
    span, ends = torch.tensor([5], dtype=torch.int32), torch.tensor([3, -1], dtype=torch.int32)
    uniform = torch.tensor([[-4.0], [-1.0], [-30.0], [0.999]]).repeat(1, 5).flatten()
    feed, out = torch.zeros(2, 4, dtype=torch.long), torch.zeros(20, dtype=torch.int32)
    log_probs = torch.ones(20)
    logits = torch.full((4, 30), -20.0)
    logits[:, 3] = 20.0
    plain_kernels.sample(logits, slots, span, uniform, ends, feed[0], feed[1], out, log_probs, 1.0)
    assert out[::5].tolist() == feed[0].tolist() == [3, 0, 29, 3]
    assert log_probs[::5].tolist() == pytest.approx([0, 0, 0, 0], abs=1e-6)
    assert slots[SlotField.ENDED].tolist() == [0, 0, 0, 1]
    assert slots[SlotField.GENERATED].tolist() == [1] * 4


def test_a_run_is_the_same_with_either_sampler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trained weights too: what the learner scores is what was drawn."""
    save(Policy(model(), tokenizer()), tmp_path / "chat")
    rows = [{"question": f"Is {number} it?", "secret": number} for number in range(8)]
    settings = {"model.device": "cpu", "sampling.prompts_per_step": 2, "evaluation.every": 0}
    runs = []
    for name in ("present", "group"):
        if name == "group":

            def group_sampler(sampling: Any, model: Any, policy: Any, device: str) -> GroupSampler:
                return GroupSampler(policy.model, policy.tokenizer, max_rows=16)

            monkeypatch.setattr(setup, "make_sampler", group_sampler)
        run = bestofk.train(
            tmp_path / "chat", rows, environment=Brief, objective="max@2", samples_per_prompt=4,
            steps=2, max_new_tokens=60, dir=tmp_path / name, settings=settings,
        )  # fmt: skip
        runs.append([line for line in run.metrics if line["kind"] == "train"])
    for ours, theirs in zip(*runs, strict=True):
        assert ours["turns"] == theirs["turns"] > 1
        assert ours["reward"] == theirs["reward"]
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3)
        assert max(ours["sampler_gap_max"], theirs["sampler_gap_max"]) < 1e-4
