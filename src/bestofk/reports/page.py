"""One self-contained HTML file from plain data, in which nothing that came from outside can run.

The data go into a `<script type="application/json">` block that no browser executes, with every
character that could end it written as an escape; the page's own script puts text on the page
through `textContent` alone; and a content security policy admits that script and that style by
their hashes and nothing else: no other script, no event handler, no image, no connection.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import importlib.resources
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from bestofk.storage import json_safe

CHARTS = ("vendor/uplot.min.js", "page/base.js", "page/chart.js")
"""The charts of every page."""
SCRIPTS = (
    *CHARTS,
    "page/scatter.js",
    "page/sections.js",
    "page/compare.js",
    "page/details.js",
    "page/samples.js",
    "page/boot.js",
)
STYLES = ("vendor/uplot.min.css", "page/page.css")
ESCAPES = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


@functools.cache
def part(name: str) -> str:
    """The text of one of the page's parts, a package data file."""
    return importlib.resources.files("bestofk.reports").joinpath(name).read_text(encoding="utf-8")


def render(data: Mapping[str, Any], *, title: str, version: str, live: bool = False) -> str:
    """The report's page as text. `data` is what page/*.js read; see `report_data.page_data`.

    Args:
        live: the page asks its server for a newer one (`watching`).
    """
    values = {"version": html.escape(utf8(version)), "title": html.escape(utf8(title))}
    scripts = [part(name) for name in SCRIPTS]
    return assemble(part("page/page.html"), scripts, data, values, part("page/live.js") * live)


def assemble(
    template: str, scripts: Sequence[str], data: Any, values: Mapping[str, str], live: str = ""
) -> str:
    """A page from its template: data, style and scripts inside it, and the policy that admits them.

    Args:
        values: HTML for the template's places beside csp, style, data and script.
        live: a script of its own, which may ask the page's server.
    """
    script = "\n".join(["(() => {", '"use strict";', *scripts, "})();"])
    script += "\n" + live if live else ""
    style = "\n".join(map(part, STYLES))
    csp = policy(script, style) + ("; connect-src 'self'" if live else "")
    places = {**values, "csp": csp, "style": style, "data": encode(data), "script": script}
    # In one pass: nothing inserted is itself searched for places.
    return re.sub(r"{{(\w+)}}", lambda place: places[place[1]], template)


def policy(script: str, style: str) -> str:
    """A content security policy that admits exactly this script and this style."""
    digests = (hashlib.sha256(text.encode("utf-8")).digest() for text in (script, style))
    scripts, styles = (f"'sha256-{base64.b64encode(each).decode('ascii')}'" for each in digests)
    return (
        f"default-src 'none'; script-src {scripts}; style-src {styles}; "
        "base-uri 'none'; form-action 'none'"
    )


def encode(data: Any) -> str:
    """JSON that can stand inside a script element whatever it holds.

    `<`, `>`, `&` and the line separators U+2028 and U+2029 are escaped, so no `</script>` and no
    `<!--` can appear; lone surrogates, which UTF-8 cannot hold, become escapes too; floats keep six
    significant digits; NaN and the infinities, which JSON has not, become null.

    >>> encode({"text": "</script>", "value": float("nan")})
    '{"text":"\\\\u003c/script\\\\u003e","value":null}'
    """
    text = json.dumps(
        json_safe(data, digits=6), ensure_ascii=False, allow_nan=False, separators=(",", ":")
    )
    return utf8(text.translate(ESCAPES))


def utf8(text: str) -> str:
    """The text with lone surrogates, which UTF-8 cannot hold, written as escapes (JSON's, too)."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
