"""Write the files of lighteval_*.parquet here with lighteval itself (lighteval-requirements.txt).

    python write_lighteval.py FOLDER

A model that answers from a list stands in for sampling; tasks, metrics, pipeline and the writer of
the details are lighteval's own.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from lighteval.logging.evaluation_tracker import EvaluationTracker
from lighteval.models.abstract_model import LightevalModel
from lighteval.models.dummy.dummy_model import DummyModelConfig
from lighteval.models.model_output import ModelResponse
from lighteval.pipeline import ParallelismManager, Pipeline, PipelineParameters
from lighteval.tasks import registry
from lighteval.utils.cache_management import SampleCache

QUESTIONS = {"2+2=": "4", "3*3=": "9", "7-5=": "2"}
ANSWERS = {"2+2=": ["4", "5", "4", "4"], "3*3=": ["6", "6", "9", "12"], "7-5=": ["3", "1", "", "0"]}
TASK = """
from lighteval.metrics.metrics import Metrics
from lighteval.tasks.lighteval_task import LightevalTaskConfig
from lighteval.tasks.requests import Doc


def prompt(line, task_name=None):
    return Doc(task_name=task_name, query=line["question"], choices=[line["answer"]], gold_index=0)


def task(name, metrics):
    return LightevalTaskConfig(
        name=name, prompt_function=prompt, hf_repo="REPO", hf_subset="default",
        hf_avail_splits=["test"], evaluation_splits=["test"], metrics=metrics,
        generation_size=8, stop_sequence=[], version=0,
    )


TASKS_TABLE = [
    task("sums_sampled", [Metrics.pass_at_k(sample_params={"k": 1, "n": 4})]),
    task("sums_greedy", [Metrics.exact_match]),
    task("sums_majority", [Metrics.maj_at_n(sample_params={"n": 4})]),
]
"""


class Listed(LightevalModel):
    """Answers every question from ANSWERS."""

    def __init__(self) -> None:
        self.config = DummyModelConfig(model_name="listed", cache_dir=tempfile.mkdtemp())
        self._cache = SampleCache(self.config)

    tokenizer = None
    add_special_tokens = False
    max_length = 2048

    def greedy_until(self, docs):
        return [ModelResponse(input=d.query, text=ANSWERS[d.query][: d.num_samples]) for d in docs]

    def loglikelihood(self, docs):
        raise NotImplementedError

    loglikelihood_rolling = loglikelihood


def main(out: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        data.mkdir()
        lines = [json.dumps({"question": q, "answer": a}) for q, a in QUESTIONS.items()]
        (data / "test.jsonl").write_text("\n".join(lines) + "\n")
        tasks = Path(folder) / "sums.py"
        tasks.write_text(TASK.replace("REPO", str(data)))
        (Path(folder) / "tasks").mkdir()  # its shipped tasks stay out: some download when imported
        registry.__file__ = str(Path(folder) / "registry.py")
        for name in ("sums_sampled", "sums_greedy", "sums_majority"):
            tracker = EvaluationTracker(output_dir=f"{folder}/{name}", save_details=True)
            parameters = PipelineParameters(
                launcher_type=ParallelismManager.NONE, custom_tasks_directory=str(tasks)
            )
            pipeline = Pipeline(
                tasks=f"{name}|0",
                pipeline_parameters=parameters,
                evaluation_tracker=tracker,
                model=Listed(),
            )
            pipeline.evaluate()
            pipeline.save_and_push_results()
            (written,) = Path(folder, name).rglob("details_*.parquet")
            shutil.copy(written, out / f"lighteval_{name}.parquet")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
