"""The command `bestofk`: a table of verbs, each in a module imported only when it is used."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import bestofk
from bestofk.cli._terminal import wrapped
from bestofk.devices import let_threads_sleep, silence_compiler
from bestofk.messages import unknown

# group: verb: one line for --help; `bestofk.cli.<verb>_command` holds its `main(argv) -> int`
GROUPS = {
    "Try it": {
        "demo": "how training for one sample hurts best-of-k; seconds, NumPy only",
        "quickstart": "train a tiny model for one sample and for k; minutes on a CPU",
    },
    "Train": {
        "train": "train a model on a task, or on your data and reward; resume",
        "objectives": "which objective to use when; formula, claim and source",
        "tasks": "list the tasks; show prompts with verified answers",
        "model": "describe a model by name, folder or GGUF file; fetch SmolLM2",
    },
    "Evaluate": {
        "sample": "draw and score samples from a model or an endpoint, into a file",
        "eval": "pass@k and max@k with intervals, from files of many tools",
        "compare": "is B better than A, at which k, and how certain is that",
        "plan": "how many problems and samples an interval or a power needs",
        "report": "one self-contained page on runs and samples; follow a run",
    },
    "Deploy": {
        "solve": "draw up to k samples a problem, keep the best, say what it cost",
        "serve": "an OpenAI-compatible server that answers with the best of k",
    },
    "Other": {
        "doctor": "check what this machine supports and what is missing",
        "completion": "print a completion script for bash or zsh",
    },
}
VERBS = {verb: summary for verbs in GROUPS.values() for verb, summary in verbs.items()}
EVERYWHERE = {"--quiet": "BESTOFK_QUIET", "--verbose": "BESTOFK_TRACEBACK"}
"""Flags that every verb takes, and the variable that each sets."""


def usage() -> str:
    width = max(map(len, VERBS))
    lines = []
    for group, verbs in GROUPS.items():
        lines += [f"{group}:", *(f"  {v:<{width}}  {s}" for v, s in verbs.items()), ""]
    return "\n".join(
        [
            "usage: bestofk VERB [options]      bestofk VERB --help explains one verb",
            "",
            "Train and evaluate language models for best-of-k: k samples, keep the best",
            "",
            *lines,
            "Every verb: --json, --quiet (no progress), --verbose (tracebacks), --help",
            "Exit status: 0 done, 1 failed or stopped early, 2 bad input, 128 + a signal",
        ]
    )


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning as one line that a user can act on."""
    print(wrapped(f"note: {message}", sys.stderr), file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; return the exit status (0 done, 1 failed, 2 bad input, 128 + a signal)."""
    with contextlib.suppress(FileNotFoundError):  # a working folder that was removed
        if os.getcwd() not in sys.path:  # modules of the user's, as with `python -m bestofk`
            sys.path.append(os.getcwd())
    try:
        status = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    verb, *rest = arguments
    if verb in ("-V", "--version"):
        print(f"bestofk {bestofk.__version__}")
        return 0
    if verb not in VERBS:
        print(wrapped(f"bestofk: {unknown('verb', verb, VERBS)}", sys.stderr), file=sys.stderr)
        return 2
    variables = [variable for flag, variable in EVERYWHERE.items() if flag in rest]
    rest = [word for word in rest if word not in EVERYWHERE]
    before = {variable: os.environ.get(variable) for variable in variables}
    os.environ.update(dict.fromkeys(variables, "1"))
    try:
        return _run_verb(verb, rest)
    finally:
        for variable, value in before.items():
            os.environ.pop(variable)
            if value is not None:
                os.environ[variable] = value


def _run_verb(verb: str, rest: list[str]) -> int:
    warnings.showwarning = _show_warning
    silence_compiler()
    let_threads_sleep()
    # Libraries' progress bars (transformers reads a GGUF file with one) do not belong into logs.
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")
    try:
        return importlib.import_module(f"bestofk.cli.{verb}_command").main(rest)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        raise
    except Exception as error:
        if os.environ.get("BESTOFK_TRACEBACK") or not _explains_itself(error):
            raise
        print(wrapped(f"bestofk {verb}: {_message(error)}", sys.stderr), file=sys.stderr)
        return 2 if isinstance(error, ValueError | OSError | ImportError) else 1


def _explains_itself(error: Exception) -> bool:
    """Whether the message says enough: a bad input, a missing package, a failing verifier."""
    is_ours = isinstance(error, RuntimeError) and type(error).__module__.startswith("bestofk.")
    return is_ours or isinstance(error, ValueError | OSError | ImportError)


def _message(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        from bestofk.cli.doctor_command import EXTRAS

        module = error.name.partition(".")[0]
        brings = (f"'bestofk[{extra}]'" for extra, (all_of_it, _) in EXTRAS.items()
                  if module.replace("_", "-") in all_of_it)  # fmt: skip
        package = next(brings, module)
        return f"this needs {module}: pip install {package}"
    return str(error)


if __name__ == "__main__":
    sys.exit(main())
