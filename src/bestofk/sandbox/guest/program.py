"""Inside the sandbox, in the process that belongs to the model: run its code, answer calls.

Nothing here is trusted by anybody: the code it runs can change all of it. It holds no expected
result, and whatever it sends is only worth the plain value the checker decodes from it.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import errno
import functools
import io
import marshal
import os
import sys
import types
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from typing import Any

from . import wire
from .codec import decode, encode
from .wire import ABSENT, FAILED, HEADER, OK, RAISED

_RPC, _SOURCE = 3, 4
_SHORT = 4000
"""Bytes of a source that is read at once: a larger buffer would touch memory for nothing."""
_HEAD, _pack, _unpack = HEADER.size, HEADER.pack, HEADER.unpack_from
_Coroutine = types.CoroutineType
_read, _write, _pread, _close, _loads = os.read, os.write, os.pread, os.close, marshal.loads


def _source() -> str:
    data = _pread(_SOURCE, _SHORT, 0)
    if len(data) == _SHORT:
        while chunk := _pread(_SOURCE, 1 << 20, len(data)):
            data += chunk
    _close(_SOURCE)
    return data.decode("utf-8", "surrogatepass")


def run_functions(limit: int) -> None:
    """The program as a module whose functions the checker calls; answers have `limit` bytes."""
    _serve(_source(), limit)


def run_stdio(_limit: int) -> None:
    """The program as `python main.py`."""
    os._exit(_run_main(_source()))


def add_site_builtins() -> None:
    """What `site` would have added; programs call exit()."""
    import _sitebuiltins

    for name in ("exit", "quit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D (i.e. EOF)"))


_STDIN = ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")


def open_stdin_by_name() -> None:
    """Let `open("/dev/stdin")` read standard input at every tier: most have no /proc, which these
    names lead through. As with a file, each opening starts at the beginning."""
    plain_open = io.open

    @functools.wraps(plain_open)
    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        name = file if type(file) is str else hasattr(file, "__fspath__") and file.__fspath__()
        if name not in _STDIN or mode.strip("rbt"):
            return plain_open(file, mode, *args, **kwargs)
        data = io.BytesIO(b"".join(_pieces_of_stdin()))
        if "b" in mode:
            return data
        names = ("buffering", "encoding", "errors", "newline")
        options = dict(zip(names, args, strict=False)) | kwargs
        options = {name: options[name] for name in names[1:] if options.get(name) is not None}
        return io.TextIOWrapper(data, **({"encoding": "utf-8"} | options))

    builtins.open = io.open = opened


def _pieces_of_stdin() -> Iterator[bytes]:
    """All of it from the start, without moving the position."""
    at = 0
    while piece := os.pread(0, 1 << 20, at):
        at += len(piece)
        yield piece


class _Waker:
    """What an event loop of asyncio wakes itself by: an eventfd instead of two sockets, which a
    program cannot have."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self.descriptor

    def recv(self, _size: int) -> bytes:
        return bytes(min(os.eventfd_read(self.descriptor), 1))

    def send(self, _data: bytes) -> None:
        os.eventfd_write(self.descriptor, 1)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class LoopsWithWaker:
    """An importer that gives event loops a `_Waker`, when a program imports asyncio."""

    @staticmethod
    def find_spec(name: str, path: Any = None, _target: Any = None) -> Any:
        if name != "asyncio.selector_events":
            return None
        spec: Any = PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            module.BaseSelectorEventLoop._make_self_pipe = _make_waker

        spec.loader.exec_module = exec_module
        return spec


def _make_waker(loop: Any) -> None:
    loop._ssock = loop._csock = _Waker()
    loop._internal_fds += 1
    loop._add_reader(loop._ssock.fileno(), loop._read_from_self)


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
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
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
    """Run the source as a module, then answer calls until the end.

    A program that leaves, or reads an input that is not there, after it has defined what is called
    is a script around functions: they are called. Little Python, and names that are found at once:
    a page of memory written for the first time after a fork is a fault, and faults are most of what
    a short program costs.
    """
    try:
        names = _load(source)
    except BaseException as error:
        _send(0, FAILED, encode(_describe(error)))
        return
    _send(0, OK, b"")
    targets: dict[str, Any] = {}
    rest = b""
    while True:
        while len(rest) < _HEAD:
            rest += _read(_RPC, 1 << 16) or _leave()
        size, number, by_marshal = _unpack(rest)
        end = _HEAD + size
        while len(rest) < end:
            rest += _read(_RPC, 1 << 20) or _leave()
        kind, data = _answer(names, targets, rest[_HEAD:end], by_marshal, limit)
        rest = rest[end:]
        _send(number, kind, data)


def _load(source: str) -> dict[str, Any]:
    names = _module("solution").__dict__
    try:
        code = compile(source, "solution.py", "exec", dont_inherit=True)
    except (ValueError, RecursionError, OverflowError) as error:  # a null byte, a lone surrogate
        raise SyntaxError(str(error)) from error
    try:
        exec(code, names)
    except (SystemExit, EOFError):
        if not any(map(callable, names.values())):
            raise
    return names


def _answer(
    names: dict[str, Any], targets: dict[str, Any], request: bytes, by_marshal: int, limit: int
) -> tuple[int, bytes]:
    kind = ABSENT
    try:
        call = _loads(request) if by_marshal else decode(request, 1 << 30, names)
        path, args, kwargs = call
        if path not in targets:
            targets[path] = _resolve(names, path)
        kind = RAISED
        value = targets[path](*args, **kwargs)
        if type(value) is _Coroutine:
            import asyncio

            value = asyncio.run(value)
        return OK, encode(value, limit)
    except BaseException as error:
        return kind, encode(_describe(error))


def _send(number: int, kind: int, data: bytes) -> None:
    frame = _pack(len(data), number, kind) + data
    sent = _write(_RPC, frame)
    if sent < len(frame):
        wire.write_all(_RPC, frame[sent:])


def _leave() -> bytes:
    os._exit(0)


def warm_up() -> None:
    """In the zygote: let the interpreter settle on how it runs what every program runs."""
    for number in range(64):
        names = _load("def f(x):\n    return [x]\n")
        request = marshal.dumps(("f", (number,), {}), 2)
        _answer(names, {}, request, 1, 1 << 20)
        _unpack(_pack(len(request), number, OK) + request)
    del sys.modules["solution"]


def _resolve(names: dict[str, Any], path: str) -> Any:
    """`f`, `C.f` or `C().f`: the instance is made once per process, as the tests would."""
    value: Any = None
    for depth, part in enumerate(path.split(".")):
        is_call = part.endswith("()")
        name = part[:-2] if is_call else part
        if depth:
            value = getattr(value, name)
        elif name in names:
            value = names[name]
        else:
            raise NameError(f"name {name!r} is not defined")
        if is_call:
            value = value()
    return value


_MAKES = ("open", "mkdir", "symlink")
_NEEDS = ("link", "remove", "rename", "replace", "rmdir", "unlink")
"""Functions that report a missing file first."""


def fail_alike_at_every_tier() -> None:
    """Where nothing can be written, let trying it fail alike at every tier.

    Landlock answers EACCES, a read-only mount EROFS, and the latter even where there is nothing to
    remove. A program that catches one kind of error only must not be judged by which it meets:
    EROFS becomes EACCES, or ENOENT for no file.
    """
    builtins.open = io.open = _wrapped(io.open, needs_file=False)
    for name in (*_MAKES, *_NEEDS):
        plain = getattr(os, name)
        wrapped = _wrapped(plain, needs_file=name in _NEEDS)
        setattr(os, name, wrapped)
        for supported in (os.supports_dir_fd, os.supports_follow_symlinks):
            if plain in supported:
                supported.add(wrapped)


def _wrapped(function: Callable[..., Any], needs_file: bool) -> Callable[..., Any]:
    lexists, strerror = os.path.lexists, os.strerror

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
            names = error.filename, None, error.filename2
            is_missing = needs_file and isinstance(names[0], str) and not lexists(names[0])
            number = errno.ENOENT if is_missing else errno.EACCES
            raise OSError(number, strerror(number), *names) from None

    return call
