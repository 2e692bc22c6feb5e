"""Formulas of docstrings, plain text there, become LaTeX for the documentation's site."""

import importlib.util
import pathlib

import pytest

pytest.importorskip("docutils", reason="the documentation site needs Sphinx: pip install -e '.[docs]'")
PATH = pathlib.Path(__file__).resolve().parent.parent / "docs" / "formulas.py"
SPEC = importlib.util.spec_from_file_location("formulas", PATH)
FORMULAS = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(FORMULAS)


@pytest.mark.parametrize(
    "plain, latex",
    [
        ("f_n = sqrt(d) max(0, k d + c d')", r"f_{n} = \sqrt{d} \max (0, k d + c \dot{d})"),
        ("0 <= nu_n _|_ lambda_n >= 0", r"0 \le \nu_{n} \perp \lambda_{n} \ge 0"),
        ("da = -M^-1 dtau", r"da = -M^{-1} d\tau"),
        ("M (v^+ - v)", r"M (v^{+} - v)"),
        ("q*_{t,i} + 2 * x", r"q^{*}_{t,i} + 2 \cdot x"),
        ("1/2 |W (x (-) mean)|^2", r"\frac{1}{2} |W (x \ominus \text{mean})|^{2}"),
        ("sum_{t<T} l(x_{t+1}) eps^(1/3)", r"\sum_{t<T} l(x_{t+1}) \varepsilon^{1 / 3}"),
        ("log(R_ref^T R)", r"\log (R_{\text{ref}}^{\top} R)"),
        ("rows = weight * error(x)", r"\text{rows} = \text{weight} \cdot \mathrm{error}(x)"),
        ("bounds on u_t, x_t and p", r"\text{bounds on } u_{t}, x_{t} \text{ and } p"),
        ("v_t  sticking,   0  apart", r"v_{t}\quad \text{sticking},\quad 0\quad \text{apart}"),
    ],
)
def test_plain_text_becomes_latex(plain, latex):
    assert FORMULAS.as_latex(plain) == latex


def test_rows_are_aligned_at_their_equals_signs_or_where_they_are_indented():
    assert FORMULAS.as_aligned(["    a = b", "    c = d = e"]) == r"\begin{align*}a &= b\\c &= d = e\end{align*}"
    indented = FORMULAS.as_aligned(["subject to  a = b", "            c = d"])
    assert indented == r"\begin{align*}&\text{subject to} & &a = b\\& & &c = d\end{align*}"


@pytest.mark.parametrize("plain", ["sqrt(d", "x_", "x_{t"])
def test_what_is_no_formula_is_refused(plain):
    with pytest.raises(ValueError):
        FORMULAS.as_latex(plain)
