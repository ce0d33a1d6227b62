"""Rows as the field publishes them: where the question, the answer and the tests are.

Field names may be dotted (`reward_model.ground_truth`); a text on the way that holds JSON or a
Python literal is read. Nothing here executes data.
"""

from __future__ import annotations

import ast
import base64
import json
import pickletools
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from bestofk.messages import unknown
from bestofk.tasks.data_rows import LeftOut, Row
from bestofk.types import plain_text

QUESTIONS = (
    "prompt", "question", "problem", "instruction", "query", "question_content", "description",
    "messages", "conversations", "input",
)  # fmt: skip
"""Fields that hold what is asked, the first that a row has."""
ANSWERS = (
    "reward_model.ground_truth", "verification_info.ground_truth", "answer", "expected_answer",
    "ground_truth", "final_answer", "label", "solution",
)  # fmt: skip
"""Fields that hold the expected answer, the first that a row has."""
WITH_ANSWER = ("messages", "conversations")
"""Chats that end with the answer where their last message is the assistant's."""
NO_ANSWER = ("", "proof", "notfound")
"""What data sets write where a problem has no answer that can be compared."""
LONGEST_ANSWER = 300
MOST_BYTES = 1 << 29
"""Of packed tests, unpacked."""
_MISSING: Any = object()


# --------------------------------------------------------------------------------- fields
def literal(value: Any) -> Any:
    """What a text of JSON or a Python literal says; any other value as it is.

    >>> literal("{'a': 1}"), literal('[1, null]'), literal("plain")
    ({'a': 1}, [1, None], 'plain')
    """
    is_text = isinstance(value, str) and value.lstrip().startswith(("{", "["))
    return _read(value) if is_text else value


def _read(text: str) -> Any:
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return text


def field(row: Any, name: str, default: Any = _MISSING) -> Any:
    """The value of a field by its dotted name.

    >>> field({"reward_model": {"ground_truth": "34"}}, "reward_model.ground_truth")
    '34'
    """
    if isinstance(row, Mapping) and name in row:
        return row[name]
    head, _, rest = name.partition(".")
    if rest and isinstance(row, Mapping) and head in row:
        return field(literal(row[head]), rest, default)
    if default is not _MISSING:
        return default
    raise unknown("field of the data", name, row if isinstance(row, Mapping) else ())


def first_field(row: Row, names: Sequence[str]) -> str | None:
    """The first of these fields that the row has and that is not null."""
    return next((name for name in names if field(row, name, None) is not None), None)


# --------------------------------------------------------------------------------- prompts
_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant"}


def chat(value: Any) -> list[dict[str, str]] | None:
    """Chat messages, from {"role", "content"} or ShareGPT's {"from", "value"}; None for a text.

    >>> chat([{"from": "human", "value": "hi"}])
    [{'role': 'user', 'content': 'hi'}]
    """
    value = literal(value)
    if not isinstance(value, list | tuple):
        return None
    messages: list[dict[str, str]] = []
    for one in value:
        message = one if isinstance(one, Mapping) else {}
        content = message.get("content", message.get("value"))
        role = str(message.get("role") or message.get("from") or "user")
        if isinstance(content, list) and all(
            isinstance(part, Mapping) and part.get("type") == "text" for part in content
        ):
            content = "".join(str(part["text"]) for part in content)
        if not isinstance(content, str):
            raise ValueError(
                'a prompt of messages reads [{"role": "user", "content": "…"}], got '
                f"{value!r:.80}"
            )
        messages.append({"role": _ROLES.get(role, role), "content": content})
    return messages


def without_answer(messages: list[dict[str, str]], name: str, answer: str) -> list[dict[str, str]]:
    """The messages that are asked: a last one of the assistant stays where it begins the answer (a
    prefill), and goes where it is the answer."""
    last = messages[-1] if messages else {"role": ""}
    if last["role"] != "assistant":
        return messages
    is_answer = name in WITH_ANSWER or (answer and answer in last["content"])
    return messages[:-1] if is_answer else messages


# --------------------------------------------------------------------------------- answers
def last_boxed(solution: str) -> str:
    """The inside of the last box of a worked solution."""
    start = max(solution.rfind("\\boxed{"), solution.rfind("\\fbox{"))
    if start < 0:
        bare = re.search(r"\\boxed ([0-9A-Za-z])", solution)  # a few solutions box one bare sign
        if bare is None:
            raise ValueError(f"a MATH solution boxes its answer, this one does not: {solution!r}")
        return bare[1]
    return _closed(solution, solution.index("{", start) + 1)


def _closed(text: str, begin: int) -> str:
    """The text from a place on, up to the brace that closes what was opened before it."""
    depth = 1
    for end in range(begin, len(text)):
        depth += (text[end] == "{") - (text[end] == "}")
        if depth == 0:
            return text[begin:end]
    raise ValueError(f"the box of a MATH solution does not close: {text!r}")


def answer_of(row: Row, name: str, after: str = "") -> str:
    """The expected answer in a field: what follows a mark, the last box of a worked solution, what
    follows ####, or all of it.

    >>> answer_of({"s": "So $x=\\\\boxed{\\\\frac{1}{2}}$."}, "s")
    '\\\\frac{1}{2}'
    >>> answer_of({"s": "So $\\\\boxed{100}$."}, "s", after="\\\\boxed{")
    '100'
    """
    value = field(row, name)
    if isinstance(literal(value), Mapping):
        inside = ", ".join(f"{name}.{key}" for key in literal(value))
        raise ValueError(f"field {name!r} holds several values; name one of {inside}")
    try:
        text = plain_text(value).strip()
    except ValueError as error:
        raise ValueError(f"field {name!r}: {error}") from error
    if text.lower() in NO_ANSWER:
        raise LeftOut(f"field {name!r} states no answer that can be compared: {text!r}")
    if after:
        if after not in text:
            raise ValueError(f"no {after!r} in the answer {text[-80:]!r}")
        begin = text.rindex(after) + len(after)
        return (_closed(text, begin) if after.endswith("{") else text[begin:]).strip()
    if "\\boxed" in text or "\\fbox{" in text:
        return last_boxed(text).strip()
    if "####" in text:
        return text.rpartition("####")[2].strip()
    if len(text) > LONGEST_ANSWER:
        raise ValueError(
            f"field {name!r} reads like a worked solution, not an answer: {text[:60]!r}… ; name "
            "the field with the answer alone, or what precedes it there with answer_after"
        )
    return text


# --------------------------------------------------------------------------------- programs
PYTHON3 = 3
"""CodeContests' number for the language."""


def first_program(programs: Any) -> str | None:
    """One Python program from a text, a list (also as JSON) or CodeContests' table."""
    programs = literal(programs)
    if isinstance(programs, Mapping):
        pairs = zip(programs["language"], programs["solution"], strict=True)
        programs = [code for language, code in pairs if language == PYTHON3]
    if isinstance(programs, list):
        return programs[0] if programs else None
    return programs or None


def packed_tests(text: Any) -> Any:
    """LiveCodeBench's private tests: JSON, or a pickled text of JSON, compressed, in base 64.

    The pickle is not loaded, which could execute anything: the one text it holds is read.
    """
    tests = literal(text)
    if not isinstance(tests, str):
        return tests
    unpacker = zlib.decompressobj()
    try:
        pickled = unpacker.decompress(base64.b64decode(tests), MOST_BYTES)
        operations = list(pickletools.genops(pickled))
    except (ValueError, zlib.error) as error:
        raise ValueError(f"tests are JSON, or packed as LiveCodeBench does it: {error}") from error
    texts = [value for operation, value, _ in operations if isinstance(value, str)]
    if len(texts) != 1 or any(operation.name in _EXECUTES for operation, _, _ in operations):
        raise ValueError("packed tests are one text of JSON; this pickle holds something else")
    return json.loads(texts[0])


_EXECUTES = ("GLOBAL", "STACK_GLOBAL", "REDUCE", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "BUILD")

PROGRAMS: Mapping[str, tuple[str, tuple[str, ...], str | None, str | None]] = {
    # name: the field with the question, those with tests, with a solution, with an id
    "LiveCodeBench": (
        "question_content", ("public_test_cases", "private_test_cases"), None, "question_id",
    ),
    "CodeContests": (
        "description", ("public_tests", "private_tests", "generated_tests"), "solutions", "name",
    ),
    "APPS or TACO": ("question", ("input_output",), "solutions", None),
    "KodCode": ("question", ("test",), "solution", "question_id"),
    "AceCode": ("question", ("test_cases",), None, "id"),
    "DeepCoder": ("problem", ("tests",), "solutions", None),
    "verification_info": ("prompt", ("verification_info",), "gold_standard_solution", "problem_id"),
    "verl": ("prompt", ("reward_model.ground_truth",), None, None),
    "test_cases": ("question", ("test_cases",), "solution", None),
    "tests": ("question", ("tests",), "solution", None),
}  # fmt: skip
"""Schemas of programming problems, recognised by their fields, in this order."""


def program_schema(row: Row) -> tuple[str, tuple[str, tuple[str, ...], str | None, str | None]]:
    """The name and the fields of the first schema that a row fits."""
    for name, (question, tests, solution, id) in PROGRAMS.items():
        if first_field(row, tests[:1]) and field(row, question, None) is not None:
            has = [each if each and first_field(row, (each,)) else None for each in (solution, id)]
            present = tuple(each for each in tests if first_field(row, (each,)))
            return name, (question, present, has[0], has[1])
    raise ValueError(
        f"no schema of programming problems has these fields: {', '.join(row)}; name those with "
        "the question and the tests: question=…, tests=[…]"
    )


def program_spec(row: Row, tests: Sequence[str], starter: str = "") -> dict[str, Any]:
    """What the code verifier needs, from all of these fields with tests; public ones are `shown`.

    Raises:
        LeftOut: the row has no tests.
    """
    cases: list[Any] = []
    public = 0
    function = field(row, "metadata.func_name", None) or field(row, "fn_name", None)
    for name in tests:
        packed = packed_tests(field(row, name)) if name.startswith("private_test") else None
        more, named = _cases(field(row, name) if packed is None else packed)
        function = function or named
        cases += more
        public += len(more) if name.startswith("public_test") else 0
    if not cases:
        raise LeftOut(f"no tests in {', '.join(tests)}")
    if all(isinstance(case, str) for case in cases):
        return {"asserts": _asserts(cases)}
    if not all(isinstance(case, Mapping) for case in cases):
        raise ValueError(f"tests are all asserts, or all inputs with outputs; got {cases[0]!r:.80}")
    kinds = {str(case.get("testtype") or case.get("type") or "") for case in cases}
    if function is None or kinds & {"stdin", "stdin_stdout"}:
        if kinds & {"functional", "function_call"}:
            raise ValueError("these tests call a function, and no field names it: fn_name, say")
        stdio = [_stdio(case) for case in cases]
        return {"stdio": stdio} | ({"shown": stdio[:public]} if public else {})
    path = f"Solution().{function}" if "class Solution" in starter else function
    calls = _calls(cases)
    spec = {"entry_point": path, "calls": calls}
    return spec | ({"shown": calls[:public]} if public else {})


def time_limit(row: Row) -> dict[str, float]:
    """Seconds per test, from a number, "2.0 seconds" or CodeContests' {"seconds", "nanos"}.

    >>> time_limit({"time_limit": "2.0 seconds"}), time_limit({"time_limit": None})
    ({'time_limit': 2.0}, {})
    """
    seconds = row.get("time_limit")
    if isinstance(seconds, Mapping):
        seconds = (seconds.get("seconds") or 0) + (seconds.get("nanos") or 0) / 1e9
    number = re.match(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(?:s|sec\w*)?\s*$", str(seconds or ""))
    return {"time_limit": float(number[1])} if number and float(number[1]) > 0 else {}


def _cases(tests: Any) -> tuple[list[Any], str | None]:
    """The tests in a field's value, one by one, and the function they call, if any."""
    tests = literal(tests)
    if tests is None:
        return [], None
    if isinstance(tests, str):
        return [tests], None
    if isinstance(tests, Mapping):
        for inside in ("test_cases", "tests", "unit_tests"):
            if inside in tests:
                return _cases(tests[inside])
        inputs = tests.get("inputs", tests.get("input"))
        outputs = tests.get("outputs", tests.get("output"))
        if inputs is None or outputs is None:
            raise ValueError(f"tests have inputs and outputs, these have {', '.join(tests)}")
        if isinstance(inputs, str) or isinstance(outputs, str):
            inputs, outputs = [inputs], [outputs]
        pairs = [{"input": i, "output": o} for i, o in zip(inputs, outputs, strict=True)]
        return pairs, tests.get("fn_name") or tests.get("func_name")
    if not isinstance(tests, list | tuple):
        return [tests], None
    cases = [case for case in tests if case is not None]
    for case in cases:
        if isinstance(case, Mapping) and not {"input", "output"} <= set(case):
            raise ValueError(f"a test has input and output, this one has {', '.join(case)}")
    names = {case.get("fn_name") or field(case, "metadata.func_name", None) for case in cases
             if isinstance(case, Mapping)} - {None, ""}  # fmt: skip
    if len(names) > 1:
        raise ValueError(f"the tests of a problem call one function, these {sorted(names)}")
    return cases, next(iter(names), None)


def _stdio(case: Mapping[str, Any]) -> dict[str, str]:
    for part in ("input", "output"):
        if not isinstance(case[part], str | list):
            raise ValueError(f"an {part} is text or a list of lines, got {case[part]!r}")
    return {part: _joined(case[part]) for part in ("input", "output")}


def _joined(text: str | list[Any]) -> str:
    joined = text if isinstance(text, str) else "\n".join(map(str, text))
    return joined.replace("\r\n", "\n")


def _calls(cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Calls with what they should return. APPS puts each result into a list of its own."""
    outputs = [_values(case["output"]) if isinstance(case["output"], str) else [case["output"]]
               for case in cases]  # fmt: skip
    expected = [output[0] if len(output) == 1 else output for output in outputs]
    in_lists = [isinstance(case["output"], list) and len(case["output"]) == 1 for case in cases]
    if all(in_lists):
        expected = [value[0] for value in expected]
    calls: list[dict[str, Any]] = []
    for case, value in zip(cases, expected, strict=True):
        inputs = case["input"]
        if isinstance(inputs, Mapping):
            calls.append({"args": [], "kwargs": dict(inputs), "expected": value})
        else:
            args = _values(inputs) if isinstance(inputs, str) else list(inputs)
            calls.append({"args": args, "expected": value})
    return calls


def _values(text: str) -> list[Any]:
    """Arguments written one a line as JSON, as LiveCodeBench has them."""
    return list(map(_read, text.strip().split("\n")))


_IMPORT = re.compile(r"^(?:from solution import .*|import solution)$", re.M)
_PYTEST = re.compile(r"^def (test_\w*)\(\s*\)", re.M)


def _asserts(tests: Sequence[str]) -> list[str] | str:
    """Assert statements; functions as pytest runs them (KodCode) are called one by one."""
    source = "\n".join(tests)
    functions = _PYTEST.findall(source)
    if not functions:
        return list(tests)
    calls = "\n".join(f"{name}()" for name in functions)
    return f"{_IMPORT.sub('', source)}\n{calls}\n"
