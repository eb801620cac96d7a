"""What the docstrings of kernels say: the mathematics, the layout, what bounds the launch; and no measurement.

A measurement belongs on docs/explanation/tuning.md: in a docstring it would outlive the code that it was made with.
"""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "kernels" / "ssmspec_kernels"
LAUNCH = re.compile(r"\w*kernel\[")
EQUATION = re.compile(r"^    .*(=|->|\bas in\b)", re.MULTILINE)
SAID = {"an equation": EQUATION, "the layout": re.compile(r"\bLayout: "), "what bounds it": re.compile(r"\bBound\s+by\b")}
MEASURED = re.compile(r"\b\d[\d.]* ?(us|µs|ms|ns|GB/s|TB/s|TFLOPS?)\b|\b\d[\d.]* ?%|\b\d+\.\d+ times\b")


def lacking(source: str) -> set[str]:
    """What the docstrings of a module that launches a kernel do not say: the module's, and what a launcher raises, unless its
    arguments are checked already."""
    if not LAUNCH.search(source):
        return set()
    tree = ast.parse(source)
    doc = ast.get_docstring(tree, clean=False) or ""
    public = [f for f in tree.body if isinstance(f, ast.FunctionDef) and LAUNCH.search(ast.unparse(f)) and f.name[0] != "_"]
    docs = {f.name: ast.get_docstring(f) or "" for f in public}
    silent = {f"what {name} raises" for name, doc in docs.items() if "Raises:" not in doc and "checked" not in doc}
    return {name for name, how in SAID.items() if not how.search(doc)} | silent


def measurements(source: str) -> list[str]:
    """The measured figures in docstrings and comments."""
    texts = [t.string for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type == tokenize.COMMENT]
    nodes = (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef))
    return [found[0] for text in (*texts, *(ast.get_docstring(n) or "" for n in nodes)) for found in MEASURED.finditer(text)]


@pytest.mark.parametrize("file", sorted(KERNELS.rglob("*.py")), ids=lambda file: file.stem)
def test_a_kernel_says_its_mathematics_its_layout_and_its_bound(file: Path) -> None:
    assert lacking(file.read_text()) == set()
    assert measurements(file.read_text()) == []


SOURCE = '''"""A sum.

    y = x + 1    (1)

Layout: x (b). Bound by the bytes of x.
"""


def add(x):
    """(1). Raises: ShapeMismatch."""
    _add_kernel[(1,)](x)
'''


@pytest.mark.parametrize(
    ("old", "missing"),
    [("    y = x + 1    (1)\n", "an equation"), ("Layout: x (b). ", "the layout"), ("Bound by", "what bounds it"),
     (" Raises: ShapeMismatch.", "what add raises")],
)  # fmt: skip
def test_what_a_docstring_leaves_out_is_seen(old: str, missing: str) -> None:
    assert lacking(SOURCE) == set()
    assert lacking(SOURCE.replace(old, "")) == {missing}


@pytest.mark.parametrize("figure", ["3.5 us", "12 %", "97% of", "3.1 TB/s", "1.28 times"])
def test_a_measurement_in_a_docstring_or_a_comment_is_seen(figure: str) -> None:
    assert measurements(SOURCE) == []
    assert measurements(SOURCE.replace("A sum.", f"A sum in {figure}."))
    assert measurements(f"{SOURCE}# it took {figure}\n")
