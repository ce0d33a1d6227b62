"""Write the log of OpenAI evals beside this script, with that package's own recorder.

python tests/evaluation/tool_files/write_openai_evals.py       (pip install evals==3.0.1.post1)

Three samples of one evaluation, four matches each, right where (sample + number) % 3 > 0.
"""

import os
from pathlib import Path

os.environ.setdefault("OPENAI_API_KEY", "none is used")

from evals.base import RunSpec
from evals.record import LocalRecorder

SPEC = RunSpec(
    completion_fns=["toy"], eval_name="add.dev.v0", base_eval="add", split="dev", run_config={},
    created_by="", run_id="", created_at="",
)  # fmt: skip

recorder = LocalRecorder(str(Path(__file__).parent / "openai_evals.jsonl"), SPEC)
for sample in range(3):
    with recorder.as_default_recorder(f"add.dev.{sample}"):
        for number in range(4):
            right = (sample + number) % 3 > 0
            said = str(sample + 1 if right else 0)
            recorder.record_sampling(prompt=f"{sample}+1=", sampled=[said])
            recorder.record_match(right, expected=str(sample + 1), picked=said, sampled=said)
recorder.record_final_report({"accuracy": 0.67})
recorder.flush_events()
