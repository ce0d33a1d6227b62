# ruff: noqa: E501 - completions, one per line
"""From a completion to the program in it (28): what a careful reader would take for it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bestofk.rewards.code.extract_program import answer_text, assembled, extract_code
from bestofk.types import Verdict

JudgeAll = Callable[[dict[str, tuple[dict[str, Any], str]]], dict[str, Verdict]]
PLUS_ONE: dict[str, Any] = {"asserts": ["assert f(1) == 2", "assert f(2) == 3"]}
STDIO: dict[str, Any] = {
    "stdio": [{"input": "3\n", "output": "4\n"}, {"input": "4\n", "output": "5\n"}]
}
PREFIX: dict[str, Any] = PLUS_ONE | {"prefix": "def f(x):\n    '''Add one.'''\n"}
CODE = "def f(x):\n    return x + 1\n"
MAIN = "print(int(input()) + 1)\n"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("no code here", "no code here"),
        ("```python\na\n```", "a\n"),
        ("```\na\n```", "a\n"),
        ("```py\r\na\r\n```\r\n", "a\n"),
        ("~~~python\na\n~~~", "a\n"),
        ("```python\na\n```\ntext\n```python\nb\n```", "b\n"),
        ("```python\ndef f(): 1\n```\n```python\nf()\n```", "def f(): 1\n"),
        ("```python\na\n```\n```bash\nls\n```", "a\n"),
        ("```python\nnever closed", "never closed"),
        ("````python\n```\ninner\n```\n````", "```\ninner\n```\n"),
        ("<think>```python\nwrong\n```</think>```python\nright\n```", "right\n"),
        ("<think>\n```python\nwrong\n```\n</think>\n```python\nright\n```", "right\n"),
        ("```python\nwrong\n</think>\n```python\nright\n```", "right\n"),
        ("a</think>b</think>```python\nright\n```", "right\n"),
        ("```python\n```", ""),
        ("", ""),
        ("```bash\nls\n```", "```bash\nls\n```"),
        ("```text\ndef f(): 1\n```\n```bash\nls\n```", "def f(): 1\n"),
        ("```markdown\n```python\na\n```\n```", "a\n"),
        ("```python\na\n``` which uses `a`\n", "a\n"),
        ("```python\na\n```text\nb\n```", "a\n"),
        ("``` python\na\n```", "a\n"),
        ("```main.py\na\n```", "a\n"),
        ("```{python}\na\n```", "a\n"),
        ("```pythonic\na\n```\n```python\nb\n```", "b\n"),
    ],
)
def test_extraction(text: str, code: str) -> None:
    assert extract_code(text, ["f"]) == code


FENCED = f"```python\n{CODE}```\n"
READ_AS_A_PERSON_WOULD = {
    "solution, then usage": f"{FENCED}Example usage:\n```python\nprint(f(1))\n```\n",
    "solution, then output": f"{FENCED}Output:\n```\n2\n```\n",
    "solution, then a session": f"{FENCED}```pycon\n>>> f(1)\n2\n```",
    "solution, then an unmarked session": f"{FENCED}```\n>>> f(1)\n2\n```",
    "a lambda, then a comment about it": "```python\nf = lambda x: x + 1\n```\n```python\n# def f is done\nprint(f(1))\n```",
    "two versions": f"```python\ndef f(x): return x\n```\nNo, better:\n{FENCED}",
    "a helper, then the solution": "```python\nimport math\ndef g(x): return x + 1\n```\nthen\n```python\ndef f(x): return g(x)\n```",
    "an example, then the solution": f"```python\nprint(f(1))\n```\n{FENCED}",
    "fence under a list item": "1. Solution:\n\n   ```python\n   def f(x):\n       return x + 1\n   ```\n",
    "fence beside a list item": "1. ```python\n   def f(x):\n       return x + 1\n   ```\n",
    "fence indented by four": "- Solution:\n\n    ```python\n    def f(x):\n        return x + 1\n    ```\n",
    "fence after prose": f"Here it is: {FENCED}",
    "unmarked fence after prose": f"Here it is: ```\n{CODE}```\n",
    "fence after code": "```python\ndef f(x):\n    return x + 1```\nDone.",
    "fence in a docstring": "```python\ndef f(x):\n    '''\n```\n    f(1)\n```\n    '''\n    return x + 1\n```\n",
    "fence in the docstring of bare code": "def f(x):\n    '''\n    ```\n    f(1)\n    ```\n    '''\n    return x + 1\n",
    "quotes in a comment": f"```python\n# '''\ns = \"'''\"\n{CODE}```\nText\n```\n2\n```",
    "a version with an unclosed string": f"```python\ndef f(x):\n    '''oops\n```\nBetter:\n{FENCED}",
    "an unclosed string elsewhere": f"{FENCED}```text\n'''\n```\n",
    "language with a file name": FENCED.replace("python", "python:main.py"),
    "language with a version": FENCED.replace("python", "Python3.11"),
    "an end token": FENCED.rstrip() + "<|im_end|>",
    "end tokens without a fence": f"{CODE}<|im_end|>\n</s>",
    "a byte order mark": "\ufeff" + CODE,
    "a byte order mark before the fence": "\ufeff" + FENCED,
    "a byte order mark in the fence": f"```python\n\ufeff{CODE}```",
    "a closing tag in a string": "```python\ndef f(x):\n    s = '</think>'\n    return x + 1\n```\n",
    "a closing tag inside a line of code": "```python\ndef f(x):\n    s = 'a </think> b'\n    return x + 1\n```\n",
    "an opening tag in a string": "```python\ndef f(x):\n    s = '<think>'\n    return x + 1\n```\n",
    "tags in bare code": "def f(x):\n    s = '<think>', '</think>'\n    return x + 1\n",
    "thinking that mentions a fence": f"<think>use ```python</think>\n{FENCED}",
    "thinking twice": f"<think>a</think> hm <think>b</think>\n{FENCED}",
    "indented without a fence": "    def f(x):\n        return x + 1\n",
    "indented in the fence": "```python\n    def f(x):\n        return x + 1\n```",
    "sentences around it": f"Here is the code:\n\n{CODE}\nIt adds one to x.\n",
    "the end of a fence that the prompt began": f"{CODE}```",
    "the end of a fence, then prose": f"{CODE}```\n\nIt adds one to x.\n",
    "an answer tag": f"<answer>\n{CODE}</answer>",
    "tags in brackets": f"[PYTHON]\n{CODE}[/PYTHON]\n",
    "line ends of Windows": "def f(x):\r\n    return x + 1\r\n",
    "line ends of Windows in a fence": "```python\r\ndef f(x):\r\n    return x + 1\r\n```",
}  # fmt: skip


OVER_STDIN = [
    f"{MAIN}```\nIt reads a number.",
    f"```python\n{MAIN}```\nFor the input\n```\n3\n```\nit prints 4.\n",
    f"```python\n{MAIN}```\nor, without reading:\n```python\nprint(4)\n```",
    f"```python\nimport sys\nx = int(sys.stdin.read())\nprint(x + 2)\n```\nno:\n```python\n{MAIN}```",
    f"```\n3\n```\n```python\n{MAIN}```",
    f"```python\n{MAIN}```\n```python\n>>> x = input()\n3\n```",
    "```python\ndef add(x): return x + 1\n```\n```python\nprint(add(int(input())))\n```",
]
AFTER_A_PREFIX = [
    "    return x + 1",
    "    return x + 1\n```",
    f"{CODE}```",
    "```python\n    return x + 1\n```",
    "```python\nreturn x + 1\n```",
    "1. The body:\n\n   ```python\n       return x + 1\n   ```",
    f"```python\n{CODE}```",
    "```python\n    def f(x):\n        return x + 1\n```",
    f"from __future__ import annotations\n{CODE}",
    f"'''Adds.'''\nfrom __future__ import (\n    annotations,\n)\n{CODE}",
]
METHOD = {"entry_point": "Solution().f", "calls": [{"args": [1], "expected": 2}]}
BY_ITS_CLASS = "```python\nclass Solution:\n    def f(self, x): return x + 1\n```\n```python\nprint(Solution().f(1))\n```"


def test_right_programs_are_found(judge_all: JudgeAll) -> None:
    """Read as a person would, among samples of input and output, after a prefix, by their class."""
    cases = {name: (PLUS_ONE, text) for name, text in READ_AS_A_PERSON_WOULD.items()}
    cases |= {text: (STDIO, text) for text in OVER_STDIN}
    cases |= {f"after a prefix: {text}": (PREFIX, text) for text in AFTER_A_PREFIX}
    cases["by its class"] = (METHOD, BY_ITS_CLASS)
    found = judge_all(cases)
    assert {name: verdict for name, verdict in found.items() if verdict.reward != 1.0} == {}


def test_an_earlier_block_that_acts_is_not_run() -> None:
    example = "```python\nimport nowhere\nx = int(input())\nprint(g(x))\n```\n"
    assert extract_code(f"{example}```python\ndef f(x): return nowhere\n```", ["f"]) == (
        "def f(x): return nowhere\n"
    )


def test_valid_python_without_a_fence_is_left_as_it_is() -> None:
    for code in (
        "import math  # for the root.\nx = 1",
        "if x: y = 1\nelse: z = 2",
        "x = 1\nprint('It is done.')  # That is all.",
        "total = 1 if x else 2.",
        "for x in y:\n    pass\n\n\n",
        "s = '<answer>'\nprint(s)",
    ):
        assert extract_code(code, ["x"]) == code


def test_nothing_is_lifted_that_is_no_future_import() -> None:
    code = "x = 'from __future__ import y'\n"
    assert assembled("import math\n", code) == "import math\n" + code


@given(st.text(st.characters(codec=None, exclude_categories=()), max_size=300), st.text(max_size=5))
def test_extraction_never_raises_and_makes_nothing_up(text: str, name: str) -> None:
    code = extract_code(text, [name])
    lines = text.replace("\r\n", "\n").split("\n")
    assert all(any(part.strip() in line for line in lines) for part in code.split("\n"))


pieces = st.sampled_from(
    ["```", "````", "~~~", "python", "\n", "  ", "def f(x): 1", "'''", '"', "</think>", "<think>",
     "f", "=", "#", "<|im_end|>", "<answer>", "\\", "Text.", ">>> ", "from __future__ import a"]
)  # fmt: skip


@given(st.lists(pieces, max_size=40).map("".join), st.sampled_from(["", "def f(x):\n    'x'\n"]))
def test_no_arrangement_of_marks_raises(text: str, prefix: str) -> None:
    assembled(prefix, extract_code(text, ["f"], prefix=prefix))
    assert answer_text(text) in text


@given(
    st.text(st.characters(exclude_characters="\r`~\ufeff", codec="utf-8"), max_size=200),
    st.text("ab \n", max_size=40),
)
def test_a_fenced_program_is_extracted_exactly(code: str, prose: str) -> None:
    code = "x" + code.replace("think>", "")
    assert extract_code(f"{prose}\n```python\n{code}\n```\n{prose}") == code + "\n"


GARBAGE = [
    "def f(x): return x + 1\0",
    "def f(x): return '\ud800' and x + 1",
    "```python\ndef f(x): return x + 1 \udfff\n```",
    "\x00" * 1000,
    "```" * 100_000,
    "(" * 100_000,
    "x" * 2_000_000,
    "```python\n" + "x\n" * 400_000,
    "\ufeff```python\n\x0c\n",
    "def f(x):\r\n\treturn x +\\\r\n",
    f"<think>maybe\n{FENCED}but I am not sure",  # thinking that never ends
]


def test_garbage_is_zero_never_nan(judge_all: JudgeAll) -> None:
    found = judge_all({str(i): (PLUS_ONE, text) for i, text in enumerate(GARBAGE)})
    assert [(v.reward, v.total) for v in found.values()] == [(0.0, 2)] * len(GARBAGE)
    assert found[str(len(GARBAGE) - 1)].status == "unparsed"


ENDLESS = [
    "<think>" * 120_000,
    "'</think>" * 120_000,
    "```python\n'''\n```\n" * 80_000,
    "```python\n" + "'\\" * 400_000,
    '"""\\' * 200_000,
    "```python\ndef g(): 1\n```\n" * 40_000,
    "<|a|>" * 200_000,
    "A" + " ." * 400_000 + "x",
    "Text .\n" * 200_000,
    "from __future__ import (" * 40_000,
    "x = 1\n" + "from __future__ import (\n" * 120_000,
    "```python\nx " + ":" * 400_000 + "\n```",
    "\n<answer>" * 120_000,
    " " * 800_000 + "<|a|>",
]


def test_extraction_takes_time_linear_in_the_text() -> None:
    """Anything quadratic would take far more CPU time, and so would a line matched in cubic time."""

    def stop(*_: object) -> None:
        raise AssertionError("three minutes of CPU time for a few MB of text")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, 180.0)
    try:
        for text in ENDLESS:
            assert len(assembled("x = 1\n", extract_code(text, ["f"]))) <= len(text) + 10
        for tail in (
            "~" * 20_000 + "`",
            "`" * 20_000 + " `",
            "~~~" + " " * 20_000 + "`",
            "```" + "a" * 20_000 + "`",
        ):
            assert extract_code(tail) == tail
            assert extract_code("```python\n" + tail) in (tail, "")
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)
