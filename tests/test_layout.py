"""The house: folders stay small, and a package's tests lie in the folder of its name."""

import ast
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("ssmspec_ref", "ssmspec_fast", "conformance", "property_tests", "perf_gates", "kernels")
MOST = 15
"""Modules a folder, `__init__` not counted."""
TESTS = {
    "ssmspec_ref": "ref",
    "ssmspec_fast": "fast",
    "conformance": "conformance",
    "property_tests": "properties",
    "perf_gates": "gates",
    "ssmspec_kernels": "kernels",
}
"""Where the tests of a package lie, below `tests`."""


FOLDERS = {*PACKAGES, "tests", "docs", ".ci", ".github"}


def test_the_repository_holds_these_folders_and_no_output_of_a_run() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {name.split("/")[0] for name in listed if "/" in name} == FOLDERS


def crowded(root: Path) -> dict[str, int]:
    """The folders below `root` that hold more than MOST modules, and how many they hold."""
    folders = {file.parent for file in root.rglob("*.py")}
    counts = {folder: sum(file.name != "__init__.py" for file in folder.glob("*.py")) for folder in folders}
    return {folder.relative_to(root.parent).as_posix(): n for folder, n in sorted(counts.items()) if n > MOST}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_folder_holds_few_modules(package: str) -> None:
    assert crowded(ROOT / package) == {}


def test_a_crowded_folder_is_seen(tmp_path: Path) -> None:
    folder = tmp_path / "package" / "deep" / "deeper"
    folder.mkdir(parents=True)
    for name in ("__init__", *(f"m{i}" for i in range(MOST))):
        (folder / f"{name}.py").touch()
    assert crowded(tmp_path / "package") == {}
    (folder / "one_more.py").touch()
    assert crowded(tmp_path / "package") == {"package/deep/deeper": MOST + 1}


@pytest.mark.parametrize("package", TESTS)
def test_a_package_has_a_folder_of_tests(package: str) -> None:
    assert list((ROOT / "tests" / TESTS[package]).glob("test_*.py"))


def test_tests_outside_those_folders_are_of_the_whole_project() -> None:
    """Tests that lie beside the folders concern imports, this layout and which tests run, and no single package."""
    beside = {file.stem for file in (ROOT / "tests").glob("test_*.py")}
    assert beside == {"test_imports", "test_layout", "test_rotation"}


def shadowed(package: Path) -> set[str]:
    """The names that a package's `__init__` gives to a function, a class or a value, and that a module of it has too.

    Importing the module puts it in place of the other.
    """
    modules = {file.stem for file in package.glob("*.py")} | {file.parent.name for file in package.glob("*/__init__.py")}
    names: set[str] = set()
    for node in ast.parse((package / "__init__.py").read_text()).body:
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Assign(targets=targets):
                names |= {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.ImportFrom() if node.module is not None:
                names |= {alias.asname or alias.name for alias in node.names}
    return names & modules


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_has_the_name_of_something_else_in_its_package(package: str) -> None:
    found = {str(init.parent): shadowed(init.parent) for init in (ROOT / package).rglob("__init__.py")}
    assert {folder: names for folder, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "text",
    ["def a(): ...", "class a: ...", "a = 1", "a: int = 1", "a, b = 1, 2", "from .a import a", "from .b import x as a"],
)
def test_a_module_with_the_name_of_something_else_is_seen(text: str, tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text(text)
    assert shadowed(tmp_path) == set()
    (tmp_path / "a.py").touch()
    assert shadowed(tmp_path) == {"a"}


def test_a_module_that_its_package_imports_is_no_second_thing(tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()
    (tmp_path / "__init__.py").write_text("from . import a")
    assert shadowed(tmp_path) == set()


STRINGS = Path(__file__).with_name("chosen_by_string.toml")


def is_text(node: ast.expr) -> bool:
    """Whether an expression is a string that is written there, or several."""
    if isinstance(node, ast.Tuple | ast.Set | ast.List):
        return bool(node.elts) and all(map(is_text, node.elts))
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(node.value)


def chosen(function: ast.FunctionDef) -> set[str]:
    """The parameters that a function compares with strings, by `==`, `in`, `match` or a dict, without `device`."""
    a, found = function.args, set[str]()
    for node in ast.walk(function):
        match node:
            case ast.Compare(left=left, comparators=others) if any(map(is_text, (left, *others))):
                found |= {part.id for part in (left, *others) if isinstance(part, ast.Name)}
            case ast.Match(subject=ast.Name(id=name), cases=cases):
                values = (v.value for case in cases for v in ast.walk(case.pattern) if isinstance(v, ast.MatchValue))
                found |= {name} if any(map(is_text, values)) else set()
            case ast.Subscript(value=ast.Dict(keys=keys), slice=ast.Name(id=name)):
                found |= {name} if any(key is not None and is_text(key) for key in keys) else set()
    return found & {p.arg for p in (*a.posonlyargs, *a.args, *a.kwonlyargs)} - {"device"}


def choosers(text: str, only: str = "") -> set[str]:
    """The functions of a module that do, or those with `only` in a decorator."""
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef) and chosen(node)]
    return {f.name for f in functions if not only or any(only in ast.unparse(d) for d in f.decorator_list)}


def test_no_function_is_several_that_a_string_chooses_from() -> None:
    """A function for each is better; where it is not, `chosen_by_string.toml` says why."""
    found = {
        f"{file.relative_to(ROOT).as_posix()} {name}"
        for package in PACKAGES
        for file in (ROOT / package).rglob("*.py")
        for name in choosers(file.read_text())
    }
    listed = [name for group in tomllib.loads(STRINGS.read_text())["group"] for name in group["functions"]]
    assert len(listed) == len(set(listed))
    assert found - set(listed) == set()
    assert set(listed) - found == set()


def test_a_function_for_the_device_is_given_flags() -> None:
    """A launcher takes an option by its name in the contract, and gives its kernel a flag; no list excuses a kernel."""
    assert {name for file in (ROOT / "kernels").rglob("*.py") for name in choosers(file.read_text(), "jit")} == set()
    kernel = "@triton.jit\ndef kernel(x, KEEP: tl.constexpr):\n    if KEEP == 'all':\n        x += 1\n"
    assert choosers(kernel, "jit") == {"kernel"}


@pytest.mark.parametrize(
    "body",
    ['x if how == "a" else y', 'x if how in ("a", "b") else y', 'x if "a" != how else y', '{"a": x, "b": y}[how]'],
)
def test_a_string_that_chooses_is_seen(body: str) -> None:
    assert choosers(f"def f(x, y, *, how):\n    return {body}") == {"f"}
    assert choosers(f"def f(x, y, how):\n    match how:\n        case 'a':\n            return {body}") == {"f"}
    assert choosers(f"def f(x, y):\n    how = g()\n    return {body}") == set()
    assert choosers(f"def f(x, y, device):\n    return {body.replace('how', 'device')}") == set()
