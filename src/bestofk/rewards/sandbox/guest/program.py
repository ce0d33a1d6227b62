"""Inside the sandbox, in the process that belongs to the model: run its code, answer calls.

Nothing here is trusted by anybody: the code it runs can change all of it. It holds no expected
result, and whatever it sends is only worth the plain value the checker decodes from it.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import importlib
import os
import sys
import threading
import types
from typing import Any

from . import wire
from .codec import CodecError, decode, encode

_RPC, _SOURCE = 3, 4
_CALL, _RESULT = 3, 4


def _source() -> str:
    size = os.fstat(_SOURCE).st_size
    source = wire.read_file(_SOURCE, size).decode("utf-8", "surrogatepass")
    os.close(_SOURCE)
    return source


def run_functions(limits: dict[str, Any]) -> None:
    """The program as a module whose functions the checker calls."""
    _serve(_source(), limits["output"])


def run_stdio(_limits: dict[str, Any]) -> None:
    """The program as `python main.py`."""
    source = _source()
    os.close(_RPC)
    os._exit(_run_main(source))


def add_site_builtins() -> None:
    """What `site` would have added; programs call exit()."""
    import _sitebuiltins

    for name in ("exit", "quit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D (i.e. EOF)"))


def _module(name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__["__builtins__"] = builtins
    sys.modules[name] = module
    return module


def _run_main(source: str) -> int:
    """The source as `python main.py`: exit status, tracebacks, threads, atexit and flushing."""
    module = _module("__main__")
    module.__dict__["__file__"] = "main.py"
    code = 0
    try:
        exec(compile(source, "main.py", "exec", dont_inherit=True), module.__dict__)
    except SystemExit as error:
        code = _exit_code(error)
    except BaseException:
        code = 1
        with contextlib.suppress(BaseException):
            sys.excepthook(*sys.exc_info())
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
    except BaseException:
        code = 120
    with contextlib.suppress(BaseException):
        sys.stderr.flush()
    return code


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    with contextlib.suppress(BaseException):
        print(error.code, file=sys.stderr)
    return 1


def _describe(error: BaseException) -> tuple[str, str]:
    try:
        return type(error).__name__, str(error)[:300]
    except BaseException:
        return "Exception", ""


def _serve(source: str, limit: int) -> None:
    """Run the source as a module, then answer (id, path, args, kwargs) until the end."""
    module = _module("solution")
    try:
        exec(compile(source, "solution.py", "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:
        name, text = _describe(error)
        _reply((0, "failed", name, text), limit)
        return
    _reply((0, "ready"), limit)
    targets: dict[str, Any] = {}
    while True:
        number, path, args, kwargs = wire.read_frame(_RPC, limit * 2)
        try:
            if path not in targets:
                targets[path] = _resolve(module, path)
            answer = (number, "ok", targets[path](*args, **kwargs))
            data = encode(answer, limit)
        except BaseException as error:
            name, text = _describe(error)
            data = encode((number, "raised", name, text))
        wire.write_all(_RPC, len(data).to_bytes(4, "little") + data)


def _reply(value: Any, limit: int) -> None:
    wire.write_frame(_RPC, value, limit)


def _resolve(module: types.ModuleType, path: str) -> Any:
    """`f`, `C.f` or `C().f`: the instance is made once per process, as the tests would."""
    value: Any = module
    for part in path.split("."):
        made = part.endswith("()")
        name = part[:-2] if made else part
        if value is module and name not in module.__dict__:
            raise NameError(f"name {name!r} is not defined")
        value = getattr(value, name)
        if made:
            value = value()
    return value


def run_call(limits: dict[str, Any]) -> None:
    """`module:function` with arguments from one file, its result into the other."""
    target, args = decode(wire.read_file(_CALL, 1 << 30), 1 << 30)
    os.close(_CALL)
    try:
        module, _, name = target.partition(":")
        function = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
        answer = encode(("ok", function(*args)), limits["output"])  # type: ignore[operator]
    except MemoryError:
        answer = encode(("memory", "MemoryError", ""))
    except CodecError as error:
        answer = encode(("raised", "CodecError", str(error)[:300]))
    except BaseException as error:
        answer = encode(("raised", *_describe(error)))
    wire.write_all(_RESULT, answer)
