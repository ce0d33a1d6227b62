"""Formulas as MathML, made when the site is built: pages need neither scripts nor the network."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert


def mathml(text: str, **display: str) -> str:
    """A formula as MathML, with the space after log that its converter leaves out."""
    return convert(text, **display).replace("<mi>log</mi>", '<mi>log</mi><mspace width="0.17em"/>')


def inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(mathml(node.astext()))
    raise nodes.SkipNode


def block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="math">{mathml(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
