"""`bestofk completion bash`: words for the shell, from the same tables as the help."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import ClassVar

from bestofk.cli._options import VerbOptions, argument, parsed
from bestofk.common import unknown


@dataclass(frozen=True, kw_only=True)
class CompletionOptions(VerbOptions):
    """Print a script that completes verbs, options and the settings of a recipe."""

    examples: ClassVar = (
        'eval "$(bestofk completion bash)"      in ~/.bashrc',
        'eval "$(bestofk completion zsh)"       in ~/.zshrc, after compinit',
    )

    shell: str = argument("SHELL")
    """bash or zsh."""


def main(argv: list[str]) -> int:
    arguments = parsed(CompletionOptions, argv, "bestofk completion")
    if arguments.shell not in ("bash", "zsh"):
        raise unknown("shell", arguments.shell, ("bash", "zsh"))
    text = script(arguments.shell)
    print(json.dumps({"shell": arguments.shell, "script": text}) if arguments.json else text)
    return 0


def script(shell: str) -> str:
    from bestofk.cli import VERBS
    from bestofk.cli._settings import settings
    from bestofk.cli.train_command import shipped_recipes

    flags = [f"--{each.name}" for each in settings()]
    train = [*shipped_recipes(), *flags, "--resume", "--dry-run", "--help", "--help-all", "--json"]
    verbs, words = shlex.quote(" ".join(VERBS)), shlex.quote(" ".join(train))
    first = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    return f"""{first}_bestofk() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}"
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W {verbs} -- "$word"))
  elif [ "${{COMP_WORDS[1]}}" = train ]; then
    COMPREPLY=($(compgen -W {words} -- "$word") $(compgen -f -- "$word"))
  else
    COMPREPLY=($(compgen -W "--help --json --quiet --verbose" -- "$word") $(compgen -f -- "$word"))
  fi
}}
complete -o filenames -F _bestofk bestofk"""
