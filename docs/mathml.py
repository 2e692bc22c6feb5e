r"""Formulas as MathML, which browsers draw by themselves: no script and no network.

`$...$` and blocks fenced as `math` hold LaTeX; latex2mathml converts it when the site is built. It knows `align*` where other
renderers of Markdown ask for `aligned`, and passes on what it does not know, which is a warning here.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.util import logging

LOGGER = logging.getLogger(__name__)
NOT_CONVERTED = re.compile(r"<m[io][^>]*>(&amp;|&|\\\w*)</m[io]>")
BAR = '<mo stretchy="false">&#x0007C;</mo>'  # between letters a bar is taken for an operator, with space around it


def converted(latex: str, display: str, place: Any) -> str:
    """LaTeX as a MathML element."""
    made = convert(latex.strip().replace("{aligned}", "{align*}"), display=display)
    if NOT_CONVERTED.search(made):
        LOGGER.warning("the formula is not converted: %s", latex, location=place)
    return made.replace(BAR, BAR.replace("<mo ", '<mo lspace="0" rspace="0" '))


def visit_inline(translator: Any, node: nodes.math) -> None:
    # A formula as wide as a phone scrolls by itself; no line ends before a comma.
    wide = '<span class="wide">{}</span>' if len(node.astext()) > 40 else "{}"
    translator.body.append(wide.format(converted(node.astext(), "inline", node)) + "&#8288;")
    raise nodes.SkipNode


def visit_block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="formula">{converted(node.astext(), "block", node)}</div>\n')
    raise nodes.SkipNode


def setup(app: Any) -> None:
    app.add_html_math_renderer("mathml", inline_renderers=(visit_inline, None), block_renderers=(visit_block, None))
