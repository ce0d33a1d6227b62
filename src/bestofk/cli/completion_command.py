"""`bestofk completion bash`: words for the shell, from the same tables as the help."""

from __future__ import annotations

import shlex

from bestofk.common import unknown

ABOUT = """usage: bestofk completion SHELL      SHELL is bash or zsh

Prints a script that completes verbs, and the settings of `bestofk train`.

  eval "$(bestofk completion bash)"        in ~/.bashrc
  eval "$(bestofk completion zsh)"         in ~/.zshrc, after compinit"""


def main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(ABOUT)
        return 0
    if argv[0] not in ("bash", "zsh"):
        raise unknown("shell", argv[0], ("bash", "zsh"))
    print(script(argv[0]))
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
    COMPREPLY=($(compgen -W "--help --quiet --verbose" -- "$word") $(compgen -f -- "$word"))
  fi
}}
complete -o filenames -F _bestofk bestofk"""
