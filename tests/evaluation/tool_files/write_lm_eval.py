"""Write the lm-evaluation-harness files beside this script, with lm_eval itself.

python tests/evaluation/tool_files/write_lm_eval.py        # lm_eval-requirements.txt
"""

import json
import random
import shutil
import tempfile
from pathlib import Path

import lm_eval
from lm_eval.api.model import LM
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

HERE = Path(__file__).parent
PROBLEMS, REPEATS = 5, 4

TASK = """
task: tiny_sums
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
output_type: generate_until
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
repeats: {repeats}
generation_kwargs:
  until: ["\\n"]
  do_sample: true
filter_list:
  - name: strict
    filter:
      - function: regex
        regex_pattern: "answer is (\\\\d+)"
      - function: take_first
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
"""


class Guesser(LM):
    """Answers without a model."""

    def __init__(self):
        super().__init__()
        self.rng = random.Random(0)

    def generate_until(self, requests, disable_tqdm=False):
        choices = [f"The answer is {n}" for n in (0, 1, 2, 3)] + ["I do not know"]
        return [self.rng.choice(choices) for _ in requests]

    def loglikelihood(self, requests, disable_tqdm=False):
        raise NotImplementedError

    loglikelihood_rolling = loglikelihood


def run(name: str, repeats: int) -> None:
    folder = Path(tempfile.mkdtemp())
    data = folder / "data.jsonl"
    rows = [{"question": f"What is {i} + 0?", "answer": str(i % 4)} for i in range(PROBLEMS)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "tiny_sums.yaml").write_text(TASK.format(data=data, repeats=repeats))
    found = lm_eval.simple_evaluate(
        model=Guesser(),
        tasks=["tiny_sums"],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
    )
    tracker = EvaluationTracker(output_path=str(folder / "out"))
    samples = found.pop("samples")
    tracker.save_results_aggregated(results=found, samples=samples)
    for task in samples:
        tracker.save_results_samples(task_name=task, samples=samples[task])
    made = next((folder / "out").rglob("samples_*.jsonl"))
    shutil.copy(made, HERE / f"lm_eval_{name}.jsonl")


if __name__ == "__main__":
    run("one_response", 1)
    run("take_first", REPEATS)
