"""A page that follows runs while they train, served on loopback, with the standard library alone.

The report is made again when a file of a run has changed; the page asks every few seconds whether
there is a newer one and loads it, where the reader has scrolled to. Nothing is written to disk, and
nobody but this machine can connect.
"""

from __future__ import annotations

import html
import http.server
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

POLL = 2.0
"""Seconds between two looks at the files, and at the server."""
WAITING = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><meta http-equiv="refresh" content="3">
<title>waiting</title><body style="font: 16px/1.5 system-ui; margin: 3rem auto; max-width: 40rem;
padding: 0 1rem"><h1>Waiting for the first step</h1><p>{why}</p>"""


class WatchedPage:
    """The newest report on some runs, made again when their files change."""

    def __init__(self, paths: Sequence[Path], make: Callable[[], str]) -> None:
        """
        Args:
            paths: files and folders to look at.
            make: the page; what it raises is shown, and the runs are followed on.
        """
        self.paths, self.make = tuple(paths), make
        self.text, self.stamp = WAITING.format(why="The report is being made."), "0"
        self.last_state: tuple[tuple[str, int, int], ...] | None = None
        self.stopping = threading.Event()
        self.token = secrets.token_urlsafe(16)
        """In the address: other users of this machine do not know it."""

    def state(self) -> tuple[tuple[str, int, int], ...]:
        """Name, size and time of every file of the runs that a report is made from."""
        result = []
        for path in self.paths:
            files = [path] if path.is_file() else sorted(path.rglob("*"))
            for file in files:
                try:
                    facts = file.stat()
                except OSError:
                    continue  # gone between two looks: checkpoints come and go
                if file.suffix in (".jsonl", ".toml", ".csv", ".parquet", ".eval"):
                    result.append((str(file), facts.st_size, facts.st_mtime_ns))
        return tuple(result)

    def refresh(self) -> bool:
        """Make the page again if a file has changed; whether it was made."""
        state = self.state()
        if state == self.last_state:
            return False
        self.last_state = state
        try:
            self.text = self.make()
        except Exception as error:  # a run may be half written: the next look may find it whole
            kind = "" if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: "
            self.text = WAITING.format(why=html.escape(f"{kind}{error}"))
        self.stamp = str(time.time_ns())
        return True

    def follow(self) -> None:
        """Look at the files until stopped."""
        while not self.stopping.wait(POLL):
            self.refresh()


def handler_of(page: WatchedPage) -> type[http.server.BaseHTTPRequestHandler]:
    """Answers /TOKEN/ with the page and /TOKEN/stamp with its time; everything else with 404."""

    class PageHandler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            host = self.headers.get("Host", "").partition(":")[0]  # port 80 is left out
            pages = {f"/{page.token}/": page.text, f"/{page.token}/stamp": page.stamp}
            # Another name for loopback is another site's attempt to read the page.
            body = pages.get(self.path) if host in ("127.0.0.1", "localhost") else None
            kind = "text/html" if self.path.endswith("/") else "text/plain"
            data = (body if body is not None else "not found").encode()
            self.send_response(200 if body is not None else 404)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Requests are not worth a line."""

    return PageHandler


def server_of(page: WatchedPage, port: int) -> http.server.ThreadingHTTPServer:
    """A server on loopback; port 0 takes a free one.

    Raises:
        OSError: the port is taken, not allowed, or none.
    """
    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler_of(page))
    except (OSError, OverflowError) as error:
        raise OSError(
            f"cannot listen on 127.0.0.1:{port} ({getattr(error, 'strerror', error)}): choose "
            "another --port from 1024 to 65535, or 0 for a free one"
        ) from None
    server.daemon_threads = True
    return server


def watch(
    paths: Sequence[Path], make: Callable[[], str], port: int, say: Callable[[str], None]
) -> None:
    """Serve the page until interrupted."""
    page = WatchedPage(paths, make)
    with server_of(page, port) as server:
        address = f"http://127.0.0.1:{server.server_address[1]}/{page.token}/"
        say(f"{address} follows {', '.join(map(str, paths))}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page.refresh()
        try:
            page.follow()
        finally:
            page.stopping.set()
            server.shutdown()
