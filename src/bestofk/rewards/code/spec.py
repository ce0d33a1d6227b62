"""Is a prompt's `spec` one that the code verifier understands? Pure functions on JSON values."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from bestofk.messages import unknown

FORMS = ("calls", "asserts", "check", "stdio")
_TEXTS = ("entry_point", "solution", "setup", "prefix", "checker")
_KEYS = {*FORMS, *_TEXTS, "tolerance", "time_limit", "shown", "messages"}
"""`messages` are for a reward function beside the tests, which do not look at them."""
_CALL_KEYS = {"args", "kwargs", "expected"}
_PATH = re.compile(r"[^\W\d]\w*(\(\))?(\.[^\W\d]\w*(\(\))?)*")


def checked_spec(spec: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The form of tests a spec has, and the spec without what is null.

    Raises ValueError for one that cannot be understood: its task is then unscored, whatever a model
    answers.
    """
    for key in spec:
        if key not in _KEYS:
            raise unknown("key of a code spec", key, _KEYS)
    stated_fields = {key: value for key, value in spec.items() if value is not None}
    forms = [form for form in FORMS if form in stated_fields]
    if len(forms) != 1:
        raise ValueError(f"a code spec has one of {', '.join(FORMS)}; got {forms or 'none'}")
    for key in _TEXTS:
        _need(
            isinstance(stated_fields.get(key, ""), str), f"`{key}` is text", stated_fields.get(key)
        )
    form = forms[0]
    entry_point = stated_fields.get("entry_point", "")
    if form in ("calls", "check") and not _PATH.fullmatch(entry_point):
        raise ValueError(f"entry_point reads like 'f' or 'Solution().f', got {entry_point!r}")
    if "checker" in stated_fields and form != "stdio":
        raise ValueError(f"`checker` judges what a program prints, and these tests are {form}")
    seconds = stated_fields.get("time_limit", 1.0)
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    _need(is_number and 0 < seconds < math.inf, "`time_limit` is seconds per test", seconds)
    for tests in (form, "shown"):
        if tests in stated_fields:
            _CHECKS[form](stated_fields[tests])
    return form, stated_fields


def _need(holds: bool, rule: str, value: object) -> None:
    if not holds:
        raise ValueError(f"{rule}, got {value!r:.80}")


def tolerances(spec: Mapping[str, Any]) -> tuple[float, float]:
    """The declared (absolute, relative) tolerance.

    >>> tolerances({"tolerance": {"abs": 1e-6}})
    (1e-06, 0.0)
    """
    declared = spec.get("tolerance", {})
    _need(isinstance(declared, Mapping), 'a tolerance reads {"abs": 1e-6, "rel": 1e-6}', declared)
    for key, value in declared.items():
        if key not in ("abs", "rel"):
            raise unknown("key of a tolerance", key, ("abs", "rel"))
        number = isinstance(value, int | float) and not isinstance(value, bool)
        fits = number and math.isfinite(value) and value >= 0
        _need(fits, f"the tolerance {key!r} is a finite number, at least 0", value)
    return float(declared.get("abs", 0.0)), float(declared.get("rel", 0.0))


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _check_calls(calls: Any) -> None:
    _need(_is_list(calls), "`calls` is a list of calls", calls)
    for call in calls:
        _need(isinstance(call, Mapping), 'a call reads {"args": [...], "expected": ...}', call)
        for key in call:
            if key not in _CALL_KEYS:
                raise unknown("key of a call", key, _CALL_KEYS)
        _need(_is_list(call.get("args")), "the `args` of a call are a list", call.get("args"))
        kwargs = call.get("kwargs", {})
        named = isinstance(kwargs, Mapping) and all(isinstance(key, str) for key in kwargs)
        _need(named, "the `kwargs` of a call are an object", kwargs)
    answered = sum("expected" in call for call in calls)
    if answered not in (0, len(calls)):
        raise ValueError(
            f"every call has `expected` or none has, got {answered} of {len(calls)}: a reference "
            "solution supplies all of them or none"
        )


def _check_asserts(asserts: Any) -> None:
    lines = _is_list(asserts) and all(isinstance(line, str) for line in asserts)
    _need(lines or isinstance(asserts, str), "`asserts` is a list of texts, or one text", asserts)


def _check_check(check: Any) -> None:
    _need(isinstance(check, str), "`check` is text", check)


def _check_stdio(cases: Any) -> None:
    _need(_is_list(cases), "`stdio` is a list of cases", cases)
    for case in cases:
        complete = isinstance(case, Mapping) and set(case) == {"input", "output"}
        _need(
            complete and all(isinstance(text, str) for text in case.values()),
            'a case of `stdio` reads {"input": "text", "output": "text"}',
            case,
        )


_CHECKS = {
    "calls": _check_calls,
    "asserts": _check_asserts,
    "check": _check_check,
    "stdio": _check_stdio,
}
