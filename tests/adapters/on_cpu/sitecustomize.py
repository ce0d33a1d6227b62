"""What lets two hosts be imported here; Python runs it first where this folder is on PYTHONPATH.

skyrl 0.3.0 asks for Python 3.11 but gives pydantic a `typing.TypedDict`, which pydantic refuses
before 3.12: it gets the one of typing_extensions, as pydantic's message says.
"""

import sys
import typing

if sys.version_info < (3, 12):
    import typing_extensions

    typing.TypedDict = typing_extensions.TypedDict
