"""What `Limits` holds is called what it is, the values that are taken: in the README, the templates and the examples."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.suite import of_operation
from ssmspec_ref.contract import Capability, Limits

ROOT = Path(__file__).parents[2]
MEANING = re.compile(r"values of each option that the \w+ takes; of an option that is not named it takes all values")
OPPOSITE = re.compile(r"(?i:missing|does not (have|take)|lacks)|\bNONE\b")
STARTERS = sorted(ROOT.glob("conformance/starters/[!_]*.py"))


def programs() -> Iterator[tuple[str, str]]:
    """Every program that a reader starts from, with its place."""
    for file in (*STARTERS, *sorted(ROOT.glob("docs/examples/*.py"))):
        yield str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")
    for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))):
        for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)):
            if "Limits(" in block:
                yield f"{page.relative_to(ROOT)}, program {number + 1}", block


def limited(source: str) -> list[ast.expr]:
    """The options that a program gives to `Limits`, or declares as limits over JSON lines."""
    found: list[ast.expr] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Limits":
            found += [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "options")]
        if isinstance(node, ast.Dict):
            named = {
                key.value: value for key, value in zip(node.keys, node.values, strict=True) if isinstance(key, ast.Constant)
            }
            if isinstance(limits := named.get("limits"), ast.Dict):
                found += [v for k, v in zip(limits.keys, limits.values, strict=True) if ast.unparse(k or v) == "'options'"]
    return found


def faults(source: str) -> list[str]:
    """What a reader could take for the opposite of what the program says."""
    said = []
    for options in limited(source):
        first = options.left if isinstance(options, ast.BinOp) else options
        if not (isinstance(first, ast.Name) and first.id in ("takes", "TAKES")):
            said.append(f"the options are given as {ast.unparse(options)}, not as `takes`")
    if limited(source):
        comments = " ".join(line.strip().lstrip("# ") for line in source.splitlines() if line.strip().startswith("#"))
        if not MEANING.search(comments):
            said.append("no comment says what `takes` means")
        said += [f"it says {found[0]!r}" for line in source.splitlines() if (found := OPPOSITE.search(line))]
    return said


PROGRAMS = dict(programs())


@pytest.mark.parametrize("place", [place for place, source in PROGRAMS.items() if limited(source)])
def test_a_program_says_which_values_it_takes(place: str) -> None:
    assert faults(PROGRAMS[place]) == []


def test_the_readme_every_starter_with_options_and_the_examples_are_among_them() -> None:
    found = {place for place, source in PROGRAMS.items() if limited(source)}
    assert {str(file.relative_to(ROOT)) for file in STARTERS if "generator" not in file.name} <= found
    assert {"README.md, program 1", *(f"docs/examples/{n}.py" for n in ("my_kernels", "program", "states"))} <= found


def test_the_reference_says_the_same() -> None:
    page = (ROOT / "docs" / "reference" / "contract.md").read_text(encoding="utf-8")
    assert re.search(r"Limits\(options, sizes, reason\) +which options and sizes it takes\n", page)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("takes", "missing"),
        ("the values of each option that the kernel takes", "what the kernel does not have"),
        ("it takes all values", "it takes none"),
        ("Limits(takes, ", 'Limits({"D": ("off",)}, '),
    ],
)
def test_a_program_that_says_the_opposite_is_seen(old: str, new: str) -> None:
    source = PROGRAMS["README.md, program 1"]
    assert old in source
    assert faults(source.replace(old, new))


def values(specifications: list[Any], limits: Limits) -> dict[str, set[str]]:
    """The values of each option that the cases within the limits have."""
    cases = [case for specification in specifications for case in specification.cases("standard", limits)]
    return {name: {case.options[name] for case in cases} for name in cases[0].options}


@pytest.mark.parametrize("file", STARTERS, ids=lambda file: file.stem)
def test_the_comment_is_true(file: Path) -> None:
    """The cases of a template have the named values only, and of an option that is not named all."""
    module: Any = importlib.import_module(f"conformance.starters.{file.stem}")
    declared: Capability
    for subject in module.adapter(*(["meta"] if file.stem == "ssd_triton" else [])).subjects:
        for operation, declared in subject.capabilities.items():
            takes, limits = getattr(module, "TAKES", {}), declared.limits
            specifications = [s for s in of_operation(operation) if any(True for _ in s.cases("smoke", limits))]
            others = Limits({name: given for name, given in limits.options.items() if name not in takes})
            every, own = (values(specifications, of) for of in (others, limits))
            assert own == every | {name: {*named} for name, named in takes.items()}, operation
