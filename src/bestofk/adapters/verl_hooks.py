"""Run something as soon as a module of the host is imported, without importing it here.

A plug-in that imported verl's trainer or workers would settle verl's choice of hardware before the
other plug-ins are loaded.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from typing import Any


def when_imported(name: str, then: Callable[[Any], None]) -> None:
    """Call `then(module)` now, or right after the module of that name is imported."""
    if name in sys.modules:
        then(sys.modules[name])
    else:
        sys.meta_path.insert(0, _WhenImported(name, then))


class _WhenImported(MetaPathFinder):
    def __init__(self, name: str, then: Callable[[Any], None]) -> None:
        self.name, self.then = name, then

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_then(module: Any) -> None:
                execute(module)
                self.then(module)

            spec.loader.exec_module = execute_then  # type: ignore[method-assign]
        return spec
