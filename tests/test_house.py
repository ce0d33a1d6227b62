"""Who may import whom, and that the light commands stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import bestofk

SOURCE = Path(bestofk.__file__).parent
ROOMS = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or path.is_dir()}
HELPERS = {"messages", "storage", "hub", "devices", "model_facts", "puzzle_names", "precision",
           "metrics", "fp8"}  # fmt: skip
TYPES = HELPERS | {"types", "sections"}
# room: what it may import of ours, beside itself
MAY_IMPORT = {
    **{room: set() for room in HELPERS},
    "devices": {"storage"},
    "sections": {"messages"},
    "types": {"messages"},
    "procedures": {"messages", "types"},
    "objectives": {"messages", "types", "procedures"},
    "tasks": TYPES | {"samples"},
    "rewards": TYPES | {"sandbox", "sampling"},
    "sandbox": set(),
    "agreement": TYPES,
    "sampling": TYPES | {"agreement"},
    "environments": TYPES | {"sampling", "rewards", "sandbox"},
    "learning": TYPES | {"agreement"},
    "models": TYPES | {"agreement"},
    "runs": TYPES,
    "config": TYPES | {"sampling", "learning", "environments"},
    "samples": TYPES,
    "evaluation": TYPES | {"procedures", "objectives", "samples"},
    "adapters": TYPES | {"procedures", "objectives", "samples", "evaluation", "environments"},
    "estimator_checks": TYPES | {"objectives", "procedures"},
    "demo": TYPES | {"objectives", "evaluation", "reports"},
    "reports": TYPES | {"samples", "evaluation", "runs"},
}
EVERYTHING_BUT = {
    "training": {"cli", "api", "reports", "adapters", "deploy"},
    "api": {"cli", "adapters", "demo", "deploy"},
    "deploy": {"cli", "adapters", "demo", "reports", "training"},
    "cli": set(),
}


MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts): ast.parse(path.read_text("utf-8"))
    for path in SOURCE.rglob("*.py")
}
"""What each module parses to, by its dotted name inside the package."""


def imports(name: str) -> set[str]:
    """Dotted names that a module imports from the package, at its top or inside a function."""
    package = ["bestofk", *name.split(".")[:-1]]
    found = set()
    for node in ast.walk(MODULES[name]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {module} - {"bestofk"} | {f"{module}.{alias.name}" for alias in node.names}
    ours = {each for each in found if each.partition(".")[0] == "bestofk"}
    return {each.removeprefix("bestofk.") for each in ours - {"bestofk.__version__"}}


def test_rooms_import_only_what_the_house_allows():
    wrong = []
    for name in MODULES.keys() - {"__init__", "__main__"}:
        room = name.partition(".")[0]
        heads = {each.partition(".")[0] for each in imports(name)} - {room}
        used = {each if each in ROOMS else "the package itself" for each in heads}
        assert room in {*MAY_IMPORT, *EVERYTHING_BUT}, f"a new room: say what {room} may import"
        top = {*ROOMS, "the package itself"} - EVERYTHING_BUT.get(room, set())
        allowed = MAY_IMPORT.get(room, top)
        wrong += [(name, each) for each in used - allowed]
    assert wrong == []
    assert "objectives" in {each.partition(".")[0] for each in imports("demo.experiment")}


HEAVY = {"torch", "transformers", "scipy", "jax", "datasets", "accelerate", "matplotlib", "pandas"}


@pytest.mark.parametrize(
    "code",
    [
        "import bestofk; assert set(bestofk.__all__) <= set(dir(bestofk));"
        "[getattr(bestofk, name) for name in bestofk.__all__];"
        "bestofk.advantages([1.0, 0.0, 0.0], 'max@2')",
        "from bestofk.cli import main; main(['--help'])",
        "from bestofk.cli import main; main(['objectives'])",
    ],
)
def test_light_commands_pull_in_nothing_heavy(code):
    probe = f"{code}\nimport sys; print('loaded', sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded []"


def test_no_two_modules_and_no_two_classes_share_a_name():
    modules = [name.rpartition(".")[2] for name in MODULES if "__" not in name]
    assert not {name for name in modules if modules.count(name) > 1}
    nodes = [node for tree in MODULES.values() for node in tree.body]
    classes = [node.name for node in nodes if isinstance(node, ast.ClassDef)]
    assert not {name for name in classes if classes.count(name) > 1}


def test_no_two_modules_import_each_other():
    """Inside functions neither: a circle of two files is one file cut in the wrong place."""
    used = {name: imports(name) & MODULES.keys() for name in MODULES if "__" not in name}
    assert not {(a, b) for a in used for b in used[a] & used.keys() if a < b and a in used[b]}


def test_settings_are_decided_in_one_place():
    """Only what states, checks and resolves settings takes a whole Config; all else gets parts."""
    taking = set()
    for name, tree in MODULES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                kinds = {ast.unparse(each.annotation) for each in given if each.annotation}
                taking |= {name} if kinds & {"Config", "Config | None"} else set()
    assert taking == {"config", "training.checks", "training.resolve", "cli.train_command"}


def test_no_page_holds_the_marks_of_a_merge():
    root = SOURCE.parents[1]
    pages = [page for top in (".", "docs", "research") for page in (root / top).glob("*.md")]
    assert [p.name for p in pages if "\n<<<<<<< " in p.read_text(encoding="utf-8")] == []
