"""Where nothing can be written, let trying it fail alike at every tier.

Landlock answers EACCES, a read-only mount EROFS, and the latter even where there is nothing to
remove. A program that catches one kind of error only must not be judged by which it meets.
"""

from __future__ import annotations

import builtins
import errno
import functools
import io
import os
from collections.abc import Callable
from typing import Any

_MAKES = ("open", "mkdir", "symlink")
_NEEDS = ("link", "remove", "rename", "replace", "rmdir", "unlink")
"""Functions that report a missing file first."""


def alike_at_every_tier() -> None:
    """Wrap what makes, moves and removes files: EROFS becomes EACCES, or ENOENT for no file."""
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
