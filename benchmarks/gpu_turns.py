"""Several turns in the group engine on one GPU, at a shape of 1.5 billion weights; needs CUDA.

    python benchmarks/gpu_turns.py [turns] [waiting] [trl]

turns: two turns of 64 tokens with a reply of 64 between them, against one turn of 192 tokens, in
the same engine. waiting: the same trajectories, three for each slot, with environments that take
.2 s to answer, against environments that take none. trl: two such turns in TRL, which has no reply
without a tool, by our `rollout_func` and the generation of transformers, where TRL is installed.
Tokens per second count forced ones; a turn ends after exactly 64 tokens: its last number to draw
with is 0, which draws token 0, and in TRL this token is forced.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import tempfile
import time
from typing import Any

import numpy as np
import torch

from _gpu import made, needs_cuda, peaks, prompts, qwen_15b, reported, seconds, words
from bestofk.environments import rollout
from bestofk.environments.author_class import as_environment
from bestofk.environments.limits import TurnLimits
from bestofk.environments.rollout import TurnSampler
from bestofk.sampling import Sampling
from bestofk.sampling.engine import group_sampler
from bestofk.sampling.engine.group_sampler import GroupSampler, PlainCheck

TURN, PROMPT, SAMPLES, SLOTS = 64, 128, 16, 512
TEMPLATE = (
    "{% for message in messages %}{{ message.role }} {{ message.content }} "
    "{% for call in message.tool_calls or [] %}{{ call | tojson }} {% endfor %}{% endfor %}"
)
"""TRL plays no environment without a chat template that shows tools, though texts need none."""
REPLY = " ".join(f"t{i}" for i in range(100, 100 + TURN))


class Answers:
    """One reply of 64 tokens, then the end."""

    wait = 0.0

    def reset(self) -> None:
        self.heard = 0

    def __call__(self, text: str) -> str | None:
        if self.wait:
            time.sleep(self.wait)
        self.heard += 1
        return REPLY if self.heard == 1 else None


class Slow(Answers):
    wait = 0.2


def numbers(asked: Any, seed: int, n: int, length: int, *, turn: int) -> np.ndarray:
    """To draw with: 0 at the end of each turn, and nowhere so small that token 0 is drawn."""
    draws = np.random.default_rng(seed).uniform(0.01, 1.0, (len(asked), n, length))
    draws[:, :, turn - 1 :: turn] = 0.0
    return draws


def timed(model: Any, count: int, environment: Any = None, repeats: int = 3) -> dict[str, Any]:
    """Calls after two others, which compile, record and compare themselves with a plain pass."""
    vocabulary = model.config.vocab_size
    engine = GroupSampler(model, words(vocabulary), precision="bf16", max_rows=SLOTS)
    draw_with = functools.partial(numbers, turn=TURN if environment else 3 * TURN)
    group_sampler.uniforms = rollout.uniforms = draw_with  # type: ignore[assignment]
    sampler: Any = engine
    if environment is not None:
        sampler = TurnSampler(engine, as_environment(environment), TurnLimits(), model="random")
    sampling = Sampling(samples_per_prompt=SAMPLES, max_new_tokens=3 * TURN)
    asked = prompts(count, PROMPT, vocabulary)
    lengths: list[int] = []

    def call() -> None:
        groups = sampler.sample(asked, seed=0, sampling=sampling)
        lengths[:] = [len(each.tokens) for group in groups for each in group.trajectories]

    first = seconds(call, 2)[0]
    engine.check.calls = PlainCheck.FIRST  # the timed ones do not compare themselves
    taken = seconds(call, repeats)
    assert engine.engine is not None, engine.reason
    assert engine.check.agreement is not None
    assert set(lengths) == {3 * TURN}, set(lengths)
    return {
        "tokens_per_s": sum(lengths) / min(taken), "seconds": taken, "first_s": first,
        "steps": engine.stats["steps"], "busy": sum(lengths) / engine.stats["slot_steps"],
        "agreement_mean": engine.check.agreement[0], "agreement_max": engine.check.agreement[1],
    }  # fmt: skip


def ended() -> Any:
    """A model whose token 0 ends a turn."""
    model = made(qwen_15b)
    model.generation_config.eos_token_id = 0
    return model


def compared(slow: Any, count: int, usual: Any = None) -> dict[str, Any]:
    """One way and the usual one, and the share of its speed."""
    model = ended()
    found = {"usual": timed(model, count, usual), "found": timed(model, count, slow)}
    share = found["found"]["tokens_per_s"] / found["usual"]["tokens_per_s"]
    return {"rows": count * SAMPLES, "slots": SLOTS, "share": share, **found, **peaks()}


def with_trl(count: int, repeats: int = 2) -> dict[str, Any]:
    """The rollouts of a trainer of TRL, after one other."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from bestofk.adapters.trl import RolloutsWithReplies

    model, rows = ended(), count * SAMPLES
    vocabulary = model.config.vocab_size
    exact = {"max_new_tokens": TURN, "min_new_tokens": TURN - 1, "forced_eos_token_id": 0}
    settings = GRPOConfig(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=rows, num_generations=SAMPLES,
        max_completion_length=3 * TURN, generation_kwargs=exact, bf16=torch.cuda.is_available(),
        report_to=[], save_strategy="no", max_steps=1,
    )  # fmt: skip
    tokenizer = words(vocabulary, pad_token="t0", eos_token="t0")
    tokenizer.chat_template = TEMPLATE
    texts = [str(prompt.text) for prompt in prompts(count, PROMPT, vocabulary)]
    rollouts = RolloutsWithReplies()
    trainer: Any = GRPOTrainer(
        model,
        lambda completions, **_: [0.0] * len(completions),
        settings,
        train_dataset=Dataset.from_dict({"prompt": texts}),
        processing_class=tokenizer,
        environment_factory=Answers,
        rollout_func=rollouts,
    )
    lengths: list[int] = []

    def call() -> None:
        trainer.environments = [Answers() for _ in range(rows)]
        for each in trainer.environments:
            each.reset()
        drawn = rollouts([text for text in texts for _ in range(SAMPLES)], trainer)
        lengths[:] = map(len, drawn["completion_ids"])

    call()
    taken = seconds(call, repeats)
    assert set(lengths) == {3 * TURN}, set(lengths)
    return {"rows": rows, "tokens_per_s": sum(lengths) / min(taken), "seconds": taken, **peaks()}


def main(named: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=["turns", "waiting", "trl"])
    asked = parser.parse_args(named)
    needs_cuda()
    groups = SLOTS // SAMPLES
    works = {
        "turns": functools.partial(compared, Answers, groups),
        "waiting": functools.partial(compared, Slow, 3 * groups, Answers),
        "trl": functools.partial(with_trl, groups),
    }
    for case in asked.cases:
        if case == "trl" and importlib.util.find_spec("trl") is None:
            print("TRL is not installed: its trajectories are not measured", flush=True)
        else:
            reported("turns", case, works[case])


if __name__ == "__main__":
    main()
