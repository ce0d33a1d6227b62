"""The command `bestofk`: a table of verbs, each in a module imported only when it is used."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import bestofk
from bestofk.common import unknown

# verb: one line for --help; `bestofk.cli.<verb>_command` holds its `main(argv) -> int`
VERBS = {
    "quickstart": "train a tiny policy for one sample and for k, side by side, in minutes (CPU)",
    "train": "train a model for what k of its samples are worth; resume",
    "demo": "what training for one sample does to best-of-k, in seconds (NumPy)",
    "objectives": "every objective with its formula, claim and source",
    "tasks": "what there is to train on; prompts with verified answers",
    "model": "models by name, folder or GGUF; fetch SmolLM2 without the Hub",
    "sample": "draw and score samples from a model or an endpoint, into a file",
    "eval": "what best-of-k is worth, from files of samples of many tools",
    "compare": "is B better than A, at which k, and how sure is that",
    "plan": "how many problems and samples an interval or power takes",
    "report": "one self-contained page on runs and samples; figures for papers",
    "doctor": "what this machine can promise, and what is missing",
}


def usage() -> str:
    width = max(map(len, VERBS))
    lines = [f"  {verb:<{width}}  {summary}" for verb, summary in VERBS.items()]
    return "\n".join(
        [
            "usage: bestofk VERB [options]        bestofk VERB --help for one verb",
            "",
            "Train language models for the way they are deployed: draw k samples, keep the best.",
            "",
            *lines,
            "",
            "  --version  print the version    --help  print this",
        ]
    )


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """A warning as one line that a user can act on."""
    kind = "deprecated" if issubclass(category, FutureWarning) else "note"
    print(f"{kind}: {message}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; return the exit status (0 done, 1 failed, 2 bad input, 130 interrupted)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    verb, *rest = arguments
    if verb in ("-V", "--version"):
        print(f"bestofk {bestofk.__version__}")
        return 0
    if verb not in VERBS:
        print(f"bestofk: {unknown('verb', verb, VERBS)}", file=sys.stderr)
        return 2
    warnings.showwarning = _show_warning
    # Threads of PyTorch that spin while they wait make a busy machine crawl; set before it loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        return importlib.import_module(f"bestofk.cli.{verb}_command").main(rest)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError) as error:
        if os.environ.get("BESTOFK_TRACEBACK"):
            raise
        print(f"bestofk {verb}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
