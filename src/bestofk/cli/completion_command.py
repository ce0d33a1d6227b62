"""`bestofk completion bash`: words for the shell, from the same tables as the help."""

from __future__ import annotations

import json
import shlex
from typing import ClassVar, Literal

from bestofk.cli._options import VerbOptions, argument, flags_of, parsed


class CompletionOptions(VerbOptions):
    """Print a script that completes verbs, options and the settings of a recipe."""

    examples: ClassVar = (
        'eval "$(bestofk completion bash)"      in ~/.bashrc',
        'eval "$(bestofk completion zsh)"       in ~/.zshrc, after compinit',
    )

    shell: Literal["bash", "zsh"] = argument("SHELL")
    """bash or zsh."""


def main(argv: list[str]) -> int:
    arguments = parsed(CompletionOptions, argv, "bestofk completion")
    text = script(arguments.shell)
    print(json.dumps({"shell": arguments.shell, "script": text}) if arguments.as_json else text)
    return 0


def script(shell: str) -> str:
    from bestofk.cli import VERBS
    from bestofk.cli._recipe_flags import recipe_flags
    from bestofk.cli.train_command import TrainOptions, shipped_recipes

    own = [word for flag in flags_of(TrainOptions) for word in flag.words[:1]]
    settings = [flag.words[0] for flag in recipe_flags()]
    train = [*shipped_recipes(), *settings, *own, "--help", "--help-all"]
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
