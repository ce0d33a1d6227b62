"""Who may import whom, and that the light commands stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import bestofk

SOURCE = Path(bestofk.__file__).parent
ROOMS = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or path.is_dir()}
TYPES = {"types", "common", "bounds"}
# room: what it may import of ours, beside itself
MAY_IMPORT = {
    "common": set(),
    "bounds": {"common"},
    "types": {"common"},
    "objectives": {"common"},
    "tasks": TYPES | {"inspect_bridge"},
    "rewards": TYPES | {"inspect_bridge"},
    "inspect_bridge": set(),
    "sampling": TYPES,
    "learning": TYPES,
    "models": TYPES,
    "runs": TYPES,
    "config": TYPES | {"sampling", "learning", "moved_keys"},
    "moved_keys": {"common"},
    "rare_settings": TYPES | {"config"},
    "evaluation": TYPES | {"objectives"},
    "adapters": TYPES | {"objectives"},
    "conformance": TYPES | {"objectives"},
    "demo": TYPES | {"objectives", "evaluation"},
    "reports": TYPES | {"evaluation", "runs"},
}
EVERYTHING_BUT = {
    "training": {"cli", "api", "reports", "adapters"},
    "api": {"cli", "adapters", "demo"},
    "cli": set(),
}


def imports(path: Path) -> set[str]:
    """Rooms of ours that a file imports, at its top or inside a function."""
    found = set()
    package = ["bestofk", *path.relative_to(SOURCE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "bestofk" and len(parts) > 1 and parts[1] in ROOMS:
                found.add(parts[1])
            elif parts[0] == "bestofk" and parts[1:] != ["__version__"]:
                found.add("the package itself")
    return found


def files() -> list[Path]:
    inside = [path for path in SOURCE.rglob("*.py") if path.parent != SOURCE]
    return inside + [path for path in SOURCE.glob("*.py") if path.stem in ROOMS - {"__init__"}]


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_rooms_import_only_what_the_house_allows(path):
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    used = imports(path) - {room}
    if room in EVERYTHING_BUT:
        assert not used & EVERYTHING_BUT[room]
    elif room == "__main__":
        assert used == {"cli"}
    else:
        assert room in MAY_IMPORT, f"a new room: say in this table what {room} may import"
        assert used <= MAY_IMPORT[room]


def test_the_table_would_notice():
    assert imports(SOURCE / "cli" / "objectives_command.py") == {"cli", "objectives"}
    assert "objectives" in imports(SOURCE / "demo" / "__init__.py") | imports_of_room("demo")


def imports_of_room(room: str) -> set[str]:
    return set().union(*(imports(path) for path in (SOURCE / room).rglob("*.py")))


HEAVY = {"torch", "transformers", "scipy", "jax", "datasets", "accelerate", "matplotlib", "pandas"}


@pytest.mark.parametrize(
    "code",
    [
        "import bestofk; bestofk.advantages([1.0, 0.0, 0.0], 'max@2'); bestofk.conformance",
        "from bestofk.cli import main; main(['--help'])",
        "from bestofk.cli import main; main(['objectives'])",
    ],
)
def test_light_commands_pull_in_nothing_heavy(code):
    probe = f"{code}\nimport sys; print('loaded', sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded []"


def test_no_file_passes_its_ceiling():
    long = {str(p): len(p.read_text().splitlines()) for p in SOURCE.rglob("*.py")}
    assert not {name: lines for name, lines in long.items() if lines > 400}


def test_no_two_modules_and_no_two_classes_share_a_name():
    modules = [p.stem for p in SOURCE.rglob("*.py") if p.stem not in ("__init__", "__main__")]
    assert not {name for name in modules if modules.count(name) > 1}
    classes = [
        node.name
        for path in SOURCE.rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    ]
    assert not {name for name in classes if classes.count(name) > 1}


def test_no_two_modules_import_each_other():
    """Inside functions neither: a circle of two files is one file cut in the wrong place."""

    def modules_of(path: Path) -> set[str]:
        package = ["bestofk", *path.relative_to(SOURCE).parts[:-1]]
        found = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else []
                module = ".".join([*base, *([node.module] if node.module else [])])
                found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
        return found

    def name_of(path: Path) -> str:
        return ".".join(["bestofk", *path.relative_to(SOURCE).with_suffix("").parts])

    paths = [path for path in SOURCE.rglob("*.py") if path.stem not in ("__init__", "__main__")]
    used = {name_of(path): modules_of(path) for path in paths}
    circles = {(a, b) for a in used for b in used[a] & used.keys() if a < b and a in used[b]}
    assert not circles
