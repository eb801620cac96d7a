"""The pictures of the house show the imports that exist, and the paths that a page names are there."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_imports import PACKAGES

ROOT = Path(__file__).parents[2]
PAGE, CONTRIBUTING = (ROOT / "docs" / "architecture.md").read_text(), (ROOT / "CONTRIBUTING.md").read_text()
NAMED = re.compile(rf"({'|'.join(PACKAGES)})(\.|$)")
Arrows = set[tuple[str, str, str]]


def names(source: str) -> Iterator[tuple[str, str]]:
    """What a source imports ("-->"), and the modules that its strings name ("-.->"), but for lists of names."""
    root = ast.parse(source)
    listed = {id(part) for node in ast.walk(root) if isinstance(node, ast.Tuple | ast.List | ast.Set) for part in node.elts}
    for node in ast.walk(root):
        if isinstance(node, ast.Import):
            yield from (("-->", alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield "-->", node.module
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in listed:
            yield "-.->", node.value if re.fullmatch(r"[\w.:]+", node.value) else ""


def arrows(packages: dict[str, Path]) -> Arrows:
    """Those that exist; a package that is imported need not be named too."""
    found: Arrows = set()
    for package, folder in packages.items():
        for file in folder.rglob("*.py"):
            for how, name in names(file.read_text()):
                if (other := NAMED.match(name)) and other[1] != package:
                    found.add((package, how, other[1]))
    return {(a, how, b) for a, how, b in found if how == "-->" or (a, "-->", b) not in found}


def mermaid(text: str) -> Arrows:
    return set(re.findall(r"^ +(\w+) (-->|-\.->) (\w+)$", text.split("```mermaid")[1].split("```")[0], re.MULTILINE))


def listed(text: str) -> Arrows:
    """Lines of a package and, behind each arrow, the packages that it leads to."""
    lines = re.findall(r"^    (\w+) +(-->.*)$", text, re.MULTILINE)
    parts = ((a, how, to) for a, line in lines for how, to in re.findall(r"(-->|-\.->) ([\w, ]+)", line))
    return {(a, how, b.strip()) for a, how, to in parts for b in to.split(",")}


def test_both_pictures_show_the_imports_that_exist() -> None:
    assert mermaid(PAGE) == listed(CONTRIBUTING) == arrows(PACKAGES)


def test_a_planted_import_shows(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text("def f():\n    from ssmspec_fast import api\nNAME = 'ssmspec_kernels.ssd_scan'\n")
    found = arrows({"conformance": tmp_path})
    assert found == {("conformance", "-->", "ssmspec_fast"), ("conformance", "-.->", "ssmspec_kernels")}
    assert not found <= mermaid(PAGE)


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`([\w/]+/[\w/.]*)`", PAGE))))
def test_a_path_that_the_page_names_exists(path: str) -> None:
    assert (ROOT / path).exists()


def test_the_page_is_one_page() -> None:
    assert len(PAGE.splitlines()) <= 80
    assert len(re.findall("```mermaid", PAGE)) == 1
