"""Write the inspect_ai files beside this script, with inspect_ai itself (inspect-requirements.txt).

python tests/evaluation/tool_files/write_inspect.py
"""

import random
import shutil
import tempfile
from pathlib import Path

from inspect_ai import Epochs, Task, eval
from inspect_ai.analysis import samples_df
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput
from inspect_ai.scorer import Score, Target, match, mean, scorer
from inspect_ai.solver import Generate, TaskState, solver

HERE = Path(__file__).parent
PROBLEMS, EPOCHS = 5, 4


@scorer(metrics=[mean()])
def length():
    """A numeric score, so that there are two scorers to choose from."""

    async def score(state: TaskState, target: Target) -> Score:
        text = state.output.completion
        if text.endswith("9"):
            return Score(value=float("nan"), explanation="could not be scored")
        return Score(value=min(1.0, len(text) / 20), answer=text.split()[-1])

    return score


@scorer(metrics=[mean()])
def graded():
    """Correct, partial, incorrect and no answer."""

    async def score(state: TaskState, target: Target) -> Score:
        given = state.output.completion.split()[-1]
        near = abs(int(given) - int(target.text))
        return Score(value="CPIN"[min(near, 3)], answer=given)

    return score


@solver
def guess():
    """Answers without a model: the files are about the log, not the samples."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        rng = random.Random(1000 * int(state.sample_id) + state.epoch)
        number = rng.choice([0, 1, 2, 3, 4, 5, 9])
        state.output = ModelOutput.from_content("mockllm/model", f"The answer is {number}")
        state.messages.append(state.output.message)
        return state

    return solve


def run(name: str, form: str, scorers: list, epochs: int = EPOCHS) -> Path:
    dataset = [Sample(id=i + 1, input=f"What is {i} + 0?", target=str(i)) for i in range(PROBLEMS)]
    task = Task(
        name=name, dataset=dataset, solver=[guess()], scorer=scorers, epochs=Epochs(epochs, "mean")
    )
    folder = Path(tempfile.mkdtemp())
    log = eval(
        task,
        model="mockllm/model",
        log_dir=str(folder),
        log_format=form,
        display="none",
        max_samples=1,
        log_realtime=False,
    )[0]
    made = Path(log.location.removeprefix("file://"))
    target = HERE / f"inspect_{name}.{form}"
    shutil.copy(made, target)
    return made


if __name__ == "__main__":
    one = run("match", "eval", [match(location="end")])
    run("match", "json", [match(location="end")])
    run("two_scorers", "eval", [match(location="end"), length()])
    run("graded", "eval", [graded()])
    table = samples_df(str(one))
    table.to_csv(HERE / "inspect_samples_df.csv", index=False)
    table.to_parquet(HERE / "inspect_samples_df.parquet", index=False)
