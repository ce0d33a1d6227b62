"""Files of samples as `bestofk eval` writes them: real countdown problems, really judged.

The policies are made up (right with a chance that depends on the problem, else a random expression
over its numbers); what they wrote, the rewards and the answers are not.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bestofk.rewards import verifier
from bestofk.runs import Run
from bestofk.tasks import task


def chance(policy: str, difficulty: float) -> float:
    """Chance of a right sample on a problem of difficulty in [0, 1)."""
    base = 0.6 * (1 - difficulty) ** 3 + 0.004
    if policy == "base":
        return base
    if (
        policy == "sharp"
    ):  # as training for one sample makes it: more of what worked, less of the rest
        return min(0.97, 3.0 * base) if base > 0.08 else 0.15 * base
    return min(0.9, 1.7 * base + 0.02)


def wrong(numbers: list[int], rng: random.Random) -> str:
    chosen = rng.sample(numbers, len(numbers))
    return "".join(f"{n}{rng.choice('+-*')}" for n in chosen[:-1]) + str(chosen[-1])


def lines(
    policy: str, problems: int, n: int, *, graded: bool, seed: int
) -> Iterator[dict[str, Any]]:
    countdown = task("countdown")
    judge = verifier("countdown", reward="closeness" if graded else "exact")
    prompts = countdown.split("test")[:problems]
    for place, prompt in enumerate(prompts):
        rng = random.Random(f"{seed} {policy} {prompt.id}")
        p = chance(policy, place / problems)
        numbers = [int(v) for v in prompt.spec["numbers"]]
        answers = []
        for _ in range(n):
            right = rng.random() < p
            expression = str(prompt.reference) if right else wrong(numbers, rng)
            answers.append(
                expression if "<answer>" in expression else f"<answer>{expression}</answer>"
            )
        texts = [f"Try {' and '.join(map(str, numbers))} in turn.\n{a}" for a in answers]
        for i, (text, verdict) in enumerate(zip(texts, judge([prompt] * n, texts))):
            yield {
                "problem_id": prompt.id,
                "sample_id": i,
                "prompt": prompt.text,
                "completion": text,
                "answer": text.split("<answer>")[1].split("</answer>")[0],
                "reward": verdict.reward,
                "correct": verdict.reward == 1.0,
                "status": verdict.status,
                "finish_reason": "stop",
                "n_tokens": len(text) // 4,
                "logprob_sum": -math.log(1 / p if "Try" in text else 1.0) - rng.random(),
                "seed": seed,
                "model": f"made-up/{policy}",
                "sampling": {"temperature": 1.0},
                "run_id": policy,
            }


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    with open(path, "w", encoding="utf-8") as stream:
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
    return path


def make_file(
    folder: Path,
    policy: str,
    *,
    problems: int = 24,
    n: int = 16,
    graded: bool = False,
    seed: int = 0,
    name: str | None = None,
) -> Path:
    """A JSONL file of that policy's samples; made once per folder."""
    path = folder / f"{name or policy}.jsonl"
    if not path.exists():
        write_lines(path, lines(policy, problems, n, graded=graded, seed=seed))
    return path


def rollout(step: int, prompt: int, sample: int) -> dict[str, Any]:
    """A row of a run's samples/: prompt p is solved by sample p, and prompt 2 has unscored ones."""
    right, broken = sample == prompt, prompt == 2 and sample == 0
    return {
        "step": step,
        "prompt_id": f"p{prompt}",
        "sample": sample,
        "prompt": f"prompt {prompt}",
        "completion": f"step {step} p{prompt} s{sample}",
        "reward": math.nan if broken else float(right),
        "status": "unscored" if broken else "correct" if right else "incorrect",
        "weight": 0.0,
        "tokens": 3,
    }


TALK: dict[str, Any] = {
    "messages": [
        {"role": "assistant", "content": "I guess 50."},
        {"role": "tool", "name": "guess", "content": "higher <b>than</b> " * 20},
        {"role": "assistant", "content": "I guess 75."},
    ],
    "turns": 2,
    "ended_by": "environment",
    "tool_calls": 1,
    "tool_errors": 1,
    "score": 0.25,
}


def make_run(
    path: Path, *, steps: int = 5, samples: bool = True, seed: int = 7, talk: bool = False
) -> Path:
    """A run's folder as training writes it, through the same `Run`; with `talk`, of a run with an
    environment."""
    config = (
        f'objective = "max@8"\n[run]\nseed = {seed}\n[model]\npath = "tiny"\n'
        "[sampling]\nsamples_per_prompt = 3\n"
    )
    run = Run.create(path, config, {})
    turns = {"turns": 1.5, "tool_errors": 0.5, "ended_by": {"environment": 0.75, "turns": 0.25}}
    for step in range(1, steps + 1):
        run.record(
            {
                "kind": "train",
                "step": step,
                "reward": 0.1 * step,
                "max@8": 0.15 * step,
                "groups": 4,
                "groups_no_signal": step % 3,
                "entropy": 1.0 / step,
                **(turns if talk else {}),
            }
        )
        cells = {
            f"pass@{k}": {"value": 0.02 * k * step, "low": 0.01 * k * step, "high": 0.03 * k * step}
            for k in (1, 2, 4)
        }
        facts = {"prompts": 9, "samples_per_prompt": 4, "results": cells}
        run.record({"kind": "evaluation", "step": step, **facts})
        if samples:
            rows = [rollout(step, p, s) for p in range(3) for s in range(3)]
            rows = [row | (TALK if talk else {}) for row in rows]
            run.record_samples(step, rows)
    run.close()
    return path


@contextlib.contextmanager
def opened(browser: Any, path: Path, **options: Any) -> Iterator[Any]:
    """The page, in which nothing may go wrong and from which nothing may be asked."""
    context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
    page = context.new_page()
    context.set_default_timeout(900_000)
    trouble: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: trouble.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: trouble.append(f"error: {error}"))
    page.on("dialog", lambda dialog: trouble.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: asked.append(request.url))
    page.on("popup", lambda popup: trouble.append("popup"))
    page.add_init_script(
        "addEventListener('securitypolicyviolation', (e) => console.error('policy', e.blockedURI))"
    )
    page.goto(path.as_uri())
    page.locator("canvas").first.wait_for(state="attached")
    yield page
    context.close()
    assert trouble == []
    assert asked == [path.as_uri()]


def wait_until(page: Any, question: str, *, seconds: float = 900) -> None:
    """Ask the page from outside until it says yes.

    Playwright's `wait_for_function` evaluates a string inside the page at every frame, which the
    page's own policy forbids: it works only where the first answer is yes.
    """
    deadline = time.monotonic() + seconds
    while not page.evaluate(question):
        assert time.monotonic() < deadline, f"never true: {question}"
        page.wait_for_timeout(20)
