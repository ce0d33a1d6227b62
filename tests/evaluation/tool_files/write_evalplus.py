"""Write the evalplus file beside this script, with evalplus itself (evalplus-requirements.txt).

python tests/evaluation/tool_files/write_evalplus.py

Three small problems stand in for HumanEval+ (evalplus reads them from HUMANEVAL_OVERRIDE_PATH);
solutions are written here: right, wrong on the extra tests only, wrong, and never ending.
"""

import json
import os
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
PROBLEMS = {
    "HumanEval/0": ("double", "    return 2 * x\n", [[1], [2]], [[-3], [0]]),
    "HumanEval/1": ("size", "    return abs(x)\n", [[1], [5]], [[-4]]),
    "HumanEval/2": ("sign", "    return (x > 0) - (x < 0)\n", [[3], [-2]], [[0]]),
}
SOLUTIONS = {
    "HumanEval/0": ["return 2 * x", "return x + x", "return x", "return x + abs(x)"],
    "HumanEval/1": ["return x", "return max(x, -x)", "return 1", "while True: pass"],
    "HumanEval/2": ["return 1 if x > 0 else -1", "return 0", "return x", "raise ValueError"],
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        problems, samples = Path(folder) / "problems.jsonl", Path(folder) / "samples.jsonl"
        rows = [
            {
                "task_id": task,
                "prompt": f"def {name}(x):\n",
                "entry_point": name,
                "canonical_solution": body,
                "base_input": base,
                "plus_input": plus,
                "atol": 0,
                "contract": "",
                "test": "",
            }
            for task, (name, body, base, plus) in PROBLEMS.items()
        ]
        problems.write_text("".join(json.dumps(row) + "\n" for row in rows))
        drawn = [
            {"task_id": task, "solution": f"def {PROBLEMS[task][0]}(x):\n    {body}\n"}
            for task, bodies in SOLUTIONS.items()
            for body in bodies
        ]
        samples.write_text("".join(json.dumps(row) + "\n" for row in drawn))
        os.environ["HUMANEVAL_OVERRIDE_PATH"] = str(problems)
        os.environ["XDG_CACHE_HOME"] = folder
        from evalplus.evaluate import evaluate

        evaluate(dataset="humaneval", samples=str(samples), parallel=1)
        (written,) = Path(folder).glob("samples*eval_results.json")
        (HERE / "evalplus_eval_results.json").write_bytes(written.read_bytes())


if __name__ == "__main__":
    main()
