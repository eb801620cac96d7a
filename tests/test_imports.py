"""Imports run one way, nothing of ours shadows another package, and a warning is an error."""

import ast
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

import networkx
import pytest

from tests.imported import imported_names

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "ssmspec_ref": ROOT / "ssmspec_ref",
    "ssmspec_kernels": ROOT / "kernels" / "ssmspec_kernels",
    "ssmspec_fast": ROOT / "ssmspec_fast",
    "conformance": ROOT / "conformance",
    "property_tests": ROOT / "property_tests",
    "perf_gates": ROOT / "perf_gates",
}
NAMES_AND_TYPES = {f"ssmspec_ref.{name}" for name in ("shapes", "errors", "contract", "registry", "options")}
ALLOWED = {
    "ssmspec_ref": {"numpy", "jaxtyping"},
    "ssmspec_kernels": {"torch", "triton"} | NAMES_AND_TYPES,
    "ssmspec_fast": {"torch", "triton", "ssmspec_kernels", "ssmspec_ref.near_ties"} | NAMES_AND_TYPES,
    "conformance": {"ssmspec_ref"},
    "property_tests": {"ssmspec_ref", "conformance"},
    "perf_gates": {"ssmspec_ref", "conformance"},
}
OURS = set(PACKAGES)


def imported(source: str) -> set[str]:
    """The absolute names of the modules that a file imports, wherever the import stands."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def offences(package: str, source: str) -> set[str]:
    """What a file of `package` imports against the arrows: of ours, always; of others, only in the oracle."""
    allowed = ALLOWED[package] | {package}
    judged = {name for name in imported(source) if package == "ssmspec_ref" or name.split(".")[0] in OURS}
    return {
        name
        for name in judged
        if name.split(".")[0] not in sys.stdlib_module_names
        and not any(name == a or name.startswith(a + ".") for a in allowed)
    }


def modules(roots: Mapping[str, Path]) -> dict[str, Path]:
    """Every module of some packages, by its dotted name; a package is its `__init__`."""
    found = {}
    for package, root in roots.items():
        for file in root.rglob("*.py"):
            parts = (package, *file.relative_to(root).with_suffix("").parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def circles(roots: Mapping[str, Path]) -> list[set[str]]:
    """Modules that import each other, wherever the import stands: in a function and for types alone, too."""
    every, graph = modules(roots), networkx.DiGraph()
    for name, file in every.items():
        inside = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
        for module, taken in imported_names(file.read_text(), inside):
            other = ".".join([*module, taken] if taken else module)
            while other and other not in every:
                other = other.rpartition(".")[0]
            if other and not f"{name}.".startswith(f"{other}."):
                graph.add_edge(name, other)
    return [circle for circle in networkx.strongly_connected_components(graph) if len(circle) > 1]


def test_no_module_imports_one_that_imports_it() -> None:
    assert circles(PACKAGES) == []


@pytest.mark.parametrize("line", ["from .b import y", "def f():\n    from p import b", "if TYPE_CHECKING:\n    import p.b"])
def test_a_planted_circle_is_found_wherever_the_import_stands(tmp_path: Path, line: str) -> None:
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "a.py").write_text(f"x = 1\n{line}\n")
    (tmp_path / "b.py").write_text("from .a import x\ny = 1\n")
    assert circles({"p": tmp_path}) == [{"p.a", "p.b"}]
    (tmp_path / "a.py").write_text("x = 1\n")
    assert circles({"p": tmp_path}) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_run_along_the_arrows(package: str) -> None:
    files = sorted(PACKAGES[package].rglob("*.py"))
    found = {str(file.relative_to(ROOT)): sorted(offences(package, file.read_text())) for file in files}
    assert {file: names for file, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("ssmspec_ref", "import torch"),
        ("ssmspec_ref", "def f():\n    from conformance.run import runner as run"),
        ("ssmspec_kernels", "from ssmspec_ref.ssd import step"),
        ("ssmspec_fast", "from ssmspec_ref import ssd"),
        ("conformance", "import ssmspec_fast"),
        ("perf_gates", "from ssmspec_kernels import ssd_scan"),
    ],
)
def test_a_planted_import_against_the_arrows_is_caught(package: str, source: str) -> None:
    assert offences(package, source)


def test_the_folder_kernels_is_no_package() -> None:
    """transformers imports a package of that name when one can be imported."""
    assert not (ROOT / "kernels" / "__init__.py").exists()


def test_transformers_does_not_import_our_kernels_folder() -> None:
    pytest.importorskip("transformers")
    probe = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from transformers import Mamba2ForCausalLM\n"
        "found = sys.modules.get('kernels')\n"
        "print(getattr(found, '__file__', None))"
    )
    done = subprocess.run([sys.executable, "-c", probe, str(ROOT)], capture_output=True, text=True, check=True)
    assert not done.stdout.strip().startswith(str(ROOT))


def test_a_warning_is_an_error() -> None:
    with pytest.raises(UserWarning, match="planted"):
        warnings.warn("planted", stacklevel=1)
