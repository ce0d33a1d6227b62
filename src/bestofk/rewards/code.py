"""Judge programs: completion → code → the fraction of tests it passes.

A prompt's `spec` (JSON values only) holds one of

- function calls: `{"entry_point": "f", "calls": [{"args": [...], "kwargs": {...}, "expected": v}],
  "tolerance": {"abs": 1e-6, "rel": 1e-6}}`. JSON has no tuples, so list and tuple compare alike.
  Where `expected` is left out of every call, `"solution"` (reference code) supplies it: MBPP+.
- assert statements: `{"asserts": ["assert f(1) == 2", ...], "setup": "import math"}` (a list or one
  source text): MBPP. Names the tests do not define are the program's.
- a check function: `{"check": "def check(candidate): ...", "entry_point": "f", "setup": "..."}`:
  HumanEval (`entry_point: "f"`) and LeetCode (`"Solution().f"`). `setup` runs before the tests, in
  the checker; give HumanEval's prompt there.
- stdin/stdout: `{"stdio": [{"input": "1 2\\n", "output": "3\\n"}], "tolerance": {...}}`.

and optionally `"prefix"`: code put before the program (HumanEval's prompt, LeetCode's imports), and
`"packages"`: nothing but the standard library unless the verifier was given more.
"""
