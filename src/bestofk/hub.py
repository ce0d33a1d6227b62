"""Whether the Hub has a model, can be reached, or has left a copy on this machine."""

from __future__ import annotations

import socket
import threading
import urllib.request
from typing import Any
from urllib.parse import urlsplit


def can_connect(url: str, *, seconds: float = 5.0) -> bool:
    """Whether the host of a URL, or the proxy that leads to it, accepts a connection.

    Libraries repeat failed requests for a minute; this says within seconds that there is no way.
    """
    parts = urlsplit(url)
    proxy = urllib.request.getproxies().get(parts.scheme)
    if proxy and not urllib.request.proxy_bypass(parts.hostname or ""):
        parts = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 80)
    result = threading.Event()

    def knock() -> None:  # in a thread, because the search for an address has no time limit
        try:
            socket.create_connection((parts.hostname or "", port), timeout=seconds).close()
            result.set()
        except OSError:
            pass

    thread = threading.Thread(target=knock, daemon=True)
    thread.start()
    thread.join(seconds)
    return result.is_set()


SHIPPED = ("tiny-countdown", "tiny-guests", "tiny-maze")
"""Starting checkpoints in the package, in the folder `models/checkpoints`."""


def hub_options(name: str, revision: str | None = None) -> dict[str, Any]:
    """Options for reading a Hub model: the copy on this machine where the Hub cannot be reached.

    Raises:
        OSError: No copy, no Hub. Said within seconds; the Hub's library would try for a minute.
    """
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    if not constants.HF_HUB_OFFLINE and can_connect(constants.ENDPOINT, seconds=2.5):
        return {}
    try:
        here = try_to_load_from_cache(name, "config.json", revision=revision)
    except HFValidationError as error:
        raise ValueError(f"no model {name!r}: {error}") from None
    if isinstance(here, str):
        return {"local_files_only": True}
    raise OSError(
        f"model {name!r} is neither a folder nor in the Hub's cache on this machine, and "
        f"{constants.ENDPOINT} cannot be reached: name a local folder or a .gguf file, or one of "
        f"those that `bestofk model` lists ({', '.join(SHIPPED)}, smollm2)"
    )
