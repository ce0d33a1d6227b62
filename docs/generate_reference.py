"""Write the reference pages that are made from the code: the command line and the settings.

`make docs` runs it through conf.py; the pages are not kept in the repository.
"""

import contextlib
import io
from pathlib import Path

from bestofk.cli import GROUPS, main, usage
from bestofk.cli._options import shown
from bestofk.cli._recipe_flags import kind_of, recipe_flags

HERE = Path(__file__).parent / "reference"


def settings_page() -> str:
    """Every setting of a recipe, by section."""
    lines = [
        "# Settings",
        "",
        "A recipe is a TOML file; every setting is also a flag: `--run.steps 100`. Tables "
        "called `advanced` hold settings that few runs change. A setting without a default is "
        "empty or chosen for you.",
    ]
    section = None
    for each in recipe_flags():
        head = each.name.rpartition(".")[0] or "(top level)"
        if head != section:
            section = head
            title = section if section == "(top level)" else f"`[{section}]`"
            lines += [
                "",
                f"## {title}",
                "",
                "| setting | kind | default | meaning |",
                "|---|---|---|---|",
            ]
        cells = [
            f"`{each.name.rpartition('.')[2]}`",
            kind_of(each),
            shown(each.default) and f"`{shown(each.default)}`",
        ]
        lines.append("| " + " | ".join(c.replace("|", "\\|") for c in [*cells, each.text]) + " |")
    return "\n".join(lines) + "\n"


def command_page() -> str:
    """The help of every verb."""
    lines = ["# Command line", "", "```text", usage(), "```"]
    for group, verbs in GROUPS.items():
        lines += ["", f"## {group}"]
        for verb in verbs:
            lines += ["", f"### bestofk {verb}", "", "```text", help_of(verb), "```"]
    return "\n".join(lines) + "\n"


def help_of(verb: str) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main([verb, "--help"])
    return "\n".join(line.rstrip() for line in said.getvalue().splitlines())


def write() -> None:
    HERE.mkdir(exist_ok=True)
    (HERE / "settings.md").write_text(settings_page(), encoding="utf-8")
    (HERE / "command-line.md").write_text(command_page(), encoding="utf-8")


if __name__ == "__main__":
    write()
