"""Sphinx: `make docs` builds the site into docs/_build/html."""

import re
import sys
from pathlib import Path

import bestofk

sys.path.insert(0, str(Path(__file__).parent))
import generate_reference

generate_reference.write()
project = "bestofk"
author = "The bestofk authors"
copyright = "2026, The bestofk authors"
release = bestofk.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "offline_math"]
html_math_renderer = "mathml"
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "**.ipynb"]
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_logo = "_static/logo.svg"
html_favicon = "_static/logo.svg"
html_extra_path = []
html_theme = "furo"
html_title = "bestofk"
autodoc_typehints = "none"
autodoc_member_order = "bysource"


def as_written(app, what, name, obj, options, lines):
    """Show docstrings as they are written: equations and tables are plain text there."""
    lines[:] = ["::", "", *("    " + line for line in lines), ""]


def files_outside(app, docname, source):
    """Links to files of the repository that are no pages of the site become downloads."""
    source[0] = re.sub(
        r"\]\(((?:\.\./)+(?:research|recipes|examples|benchmarks)/[^)#]+)[^)]*\)",
        r"](path:\1)",
        source[0],
    )


def setup(app):
    app.connect("source-read", files_outside)
    app.connect("autodoc-process-docstring", as_written)
