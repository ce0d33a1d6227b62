"""Write verifiers_traces.jsonl beside this script, with verifiers itself.

    python tests/evaluation/tool_files/write_verifiers.py

Rollouts are made by hand, without a model; the file is what the package's own writer makes of them.
"""

import random
import tempfile
from pathlib import Path

import verifiers.v1 as vf
from verifiers.v1.trace import Trace, TraceTask
from verifiers.v1.utils.trace_store import write_episode

HERE = Path(__file__).parent
PROBLEMS, ROLLOUTS = 4, 3


def episode(problem: int, rng: random.Random) -> vf.Episode:
    number = rng.randrange(4)
    task = TraceTask(
        type="Sums",
        data=vf.TaskData(idx=problem, prompt=f"What is {problem} + 0?"),
        key=f"sum-{problem}",
    )
    trace = Trace(
        task=task,
        agent=vf.AgentInfo(config=vf.AgentConfig(model="none")),
        nodes=[
            vf.MessageNode(message=vf.UserMessage(content=task.data.prompt)),
            vf.MessageNode(parent=0, message=vf.AssistantMessage(content=f"It is {number}.")),
        ],
        rewards={
            "correct": vf.Reward(score=float(number == problem)),
            "short": vf.Reward(score=1.0, weight=0.0),
        },
        is_completed=True,
        ok=True,
    )
    return vf.Episode(env=vf.EnvInfo(id="sums"), task=task, traces=[trace], ok=True)


if __name__ == "__main__":
    rng = random.Random(0)
    folder = Path(tempfile.mkdtemp())
    for _ in range(ROLLOUTS):
        for problem in range(PROBLEMS):
            write_episode(folder, episode(problem, rng))
    broken = episode(0, rng)
    broken.traces[0].ok = broken.ok = False
    broken.traces[0].rewards = {}
    write_episode(folder, broken)
    (HERE / "verifiers_traces.jsonl").write_bytes((folder / "traces.jsonl").read_bytes())
