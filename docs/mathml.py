r"""Formulas as MathML, which browsers draw by themselves: no script and no network.

`$...$` and blocks fenced as `math` hold LaTeX; latex2mathml converts it when the site is built.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert


def converted(latex: str, display: str) -> str:
    """LaTeX as a MathML element."""
    return str(convert(latex.strip(), display=display))


def visit_inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(converted(node.astext(), "inline"))
    raise nodes.SkipNode


def visit_block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="formula">{converted(node.astext(), "block")}</div>\n')
    raise nodes.SkipNode


def setup(app: Any) -> None:
    app.add_html_math_renderer("mathml", inline_renderers=(visit_inline, None), block_renderers=(visit_block, None))
