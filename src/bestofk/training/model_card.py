"""The card of a trained model: what it is, how it was made, what it reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bestofk.config import Config, to_toml
from bestofk.objectives import Objective
from bestofk.training.checks import claim_of_run


def model_card(
    config: Config,
    objective: Objective,
    *,
    steps: int,
    evaluations: Sequence[Mapping[str, Any]],
    license: str,
    data: str,
    versions: Mapping[str, str],
) -> str:
    """README.md of the final model."""
    n, prompts = config.sampling.samples_per_prompt, config.sampling.prompts_per_step
    claim = "its expected update is {}: {}".format(*claim_of_run(config, objective))
    return "\n".join(
        [
            *_front_matter(config),
            f"# {config.model.path}, trained for {objective.text}",
            "",
            f"Trained with bestofk for **{objective.text}** (k = {objective.k}; {claim}) on {data} "
            f"(licence of the data: {license}).",
            "",
            f"- start: `{config.model.path}`"
            + (f", LoRA of rank {config.model.lora_rank}" if config.model.lora_rank else ""),
            f"- rollouts: {steps} steps × {prompts} prompts × n = {n} samples, "
            f"temperature {config.sampling.temperature:g}",
            f"- loss: {config.loss.name}, {config.off_policy.inner_steps} optimiser step(s) per "
            f"batch, "
            f"off-policy weights: {objective.off_policy}",
            f"- seed {config.run.seed}; "
            + ", ".join(f"{name} {version}" for name, version in versions.items()),
            "",
            "## Results",
            "",
            *_results(config, evaluations),
            "",
            "## Use",
            "",
            "```python",
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            'model = AutoModelForCausalLM.from_pretrained("path/to/this/folder")',
            'tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")',
            "```",
            "",
            f"It was trained to be sampled {objective.k} times at temperature "
            f"{config.sampling.temperature:g}, the best answer kept.",
            "",
            "## Config",
            "",
            "```toml",
            to_toml(config).rstrip(),
            "```",
            "",
        ]
    )


def _front_matter(config: Config) -> list[str]:
    hub = "/" in config.model.path and not config.model.path.startswith((".", "/", "~"))
    return [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "tags: [bestofk, reinforcement-learning, best-of-n]",
        *(
            [f"base_model: {config.model.path}"]
            if hub and config.model.path.count("/") == 1
            else []
        ),
        "---",
        "",
    ]


def _results(config: Config, evaluations: Sequence[Mapping[str, Any]]) -> list[str]:
    if not evaluations:
        return ["No evaluation was asked for (`evaluation.every = 0`)."]
    first, last = evaluations[0], evaluations[-1]
    names = list(last["results"])
    passing = 1.0 if config.evaluation.threshold is None else config.evaluation.threshold
    return [
        f"On the {config.evaluation.split} split: {last['prompts']} prompts × "
        f"{last['samples_per_prompt']} samples, unbiased estimates, 95% intervals over prompts"
        + (f"; a reward of at least {passing:g} passes." if "pass@1" in names else "."),
        "",
        f"| | step {first['step']} | step {last['step']} |",
        "|---|---|---|",
        *(f"| {name} | {_cell(first, name)} | {_cell(last, name)} |" for name in names),
        f"| entropy per token (nats) | {first['entropy']:.3f} | {last['entropy']:.3f} |",
    ]


def _cell(line: Mapping[str, Any], name: str) -> str:
    result = line["results"].get(name)
    if result is None:
        return "–"
    return f"{result['value']:.3f} [{result['low']:.3f}, {result['high']:.3f}]"
