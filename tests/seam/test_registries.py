"""A kind of recurrence is known in the registries, and nowhere else: no `match`, tuple, table or branch over kinds."""

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest

from ssmspec_ref.layers.recurrences import RECURRENCES

ROOT = Path(__file__).parents[2]
PACKAGES = ("ssmspec_ref", "ssmspec_fast", "conformance", "property_tests", "perf_gates")
WORDS = {"ssd": "ssd", "mamba2": "ssd", "delta": "delta", "kda": "delta", "selective": "selective", "mamba1": "selective"}
WORDS |= {"shortconv": "shortconv", "mamba3": "mamba3"}
NAMES = re.compile(
    r"(SSD|Mamba2|Delta|GatedDelta|KDA|Selective|Mamba1|ShortConv|Mamba3)(?![a-z])"
    r"|(ssd|mamba2|delta|selective|mamba1|shortconv|mamba3)(_|$)"
)
KINDS = {"SSD": "ssd", "Mamba2": "ssd", "Delta": "delta", "GatedDelta": "delta", "KDA": "delta"}
KINDS |= {"Selective": "selective", "Mamba1": "selective", "ShortConv": "shortconv", "Mamba3": "mamba3"} | WORDS
OWN = {name.name for kind in RECURRENCES.values() for name in fields(kind.mixer)}
OWN -= {name for name in OWN if sum(name in {f.name for f in fields(k.mixer)} for k in RECURRENCES.values()) > 1}
"""Fields by which one kind of mixer could be told from the others."""


ELSEWHERE = {
    "conformance/engines/checkpoint": "families of checkpoints, whose layers it builds",
    "conformance/engines/diagnosis.py": "rewritten oracles, kind by kind",
    "conformance/engines/adapters/with_mlx.py": "what mlx-lm wants in the config of a family",
    "conformance/faults": "a planted fault is one of one kind",
    "conformance/adapters/reference_parts/ranks.py": "the parts of a convolution's channels, beside those that the suite has",
    "conformance/adapters/torch_fp32.py": "the rewriting in torch, kind by kind",
    "conformance/adapters/mamba_ssm.py": "what mamba-ssm has",
    "conformance/adapters/flashinfer.py": "what FlashInfer has",
    "conformance/adapters/peer_kernels": "what the kernels of vLLM and SGLang have",
    "conformance/adapters/sglang.py": "what SGLang has",
    "conformance/adapters/transformers": "what transformers has",
    "conformance/adapters/vllm.py": "what vLLM has",
    "conformance/trying/spellings.py": "how functions of others name the inputs of each recurrence",
    "ssmspec_fast/training/loop.py": "the layers of transformers, whose forward passes are replaced for training",
    "perf_gates/losslessness/cells.py": "names of trained models",
    "ssmspec_fast/adapters/kernels.py": "which kinds have a kernel of each form",
    "perf_gates/gpu/judge/recurrences.py": "families of judged kernels, and what their rows do not say",
    "perf_gates/static/counted.py": "kinds whose bytes are counted, with their sizes",
}
"""Where kinds may be known outside the registries, and why."""


def kind_of(node: ast.AST) -> str | None:
    """The kind that a word, a name or an attribute names."""
    if isinstance(node, ast.Constant):
        return WORDS.get(node.value) if isinstance(node.value, str) else None
    if isinstance(node, ast.Call):
        return kind_of(node.func)
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    found = NAMES.match(name)
    own = KINDS[found[1] or found[2]] if found else None
    return own or (kind_of(node.value) if isinstance(node, ast.Attribute) else None)


def several(nodes: list[ast.expr | None]) -> bool:
    """Whether two of the nodes, or what they unpack, name different kinds."""
    return len({kind for node in nodes if node is not None and (kind := kind_of(node))}) > 1


def union(node: ast.expr) -> list[ast.expr | None]:
    """The alternatives of a | b | c."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*union(node.left), *union(node.right)]
    return [node]


def asks(test: ast.expr) -> bool:
    """Whether a condition asks for a kind: by its name, its class, or a field that it alone has."""
    return any(map(_compares, ast.walk(test))) or any(map(_inspects, ast.walk(test)))


def _compares(node: ast.AST) -> bool:
    if not isinstance(node, ast.Compare) or not any(
        isinstance(op, ast.Eq | ast.NotEq | ast.Is | ast.IsNot) for op in node.ops
    ):
        return False
    return any(kind_of(side) for side in (node.left, *node.comparators) if isinstance(side, ast.Constant))


def _inspects(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or len(node.args) != 2:
        return False
    other = node.args[1]
    own = node.func.id == "hasattr" and isinstance(other, ast.Constant) and other.value in OWN
    return own or (node.func.id == "isinstance" and any(map(kind_of, ast.walk(other))))


def knows(node: ast.AST) -> bool:
    """Whether a node of a tree knows kinds: as a display, a union, a condition, or a case."""
    match node:
        case ast.Tuple(elts) | ast.List(elts) | ast.Set(elts):
            return several(list(elts))
        case ast.Dict(keys, values):
            return several(list(keys)) or several(list(values))
        case ast.BinOp():
            return several(union(node))
        case ast.If(test) | ast.IfExp(test) | ast.While(test) | ast.Assert(test):
            return asks(test)
        case ast.comprehension(ifs=ifs):
            return any(map(asks, ifs))
        case ast.MatchClass(cls=named) | ast.MatchValue(value=named):
            return kind_of(named) is not None
    return False


def offences(source: str) -> list[int]:
    """The lines of a source that know kinds beside a registry; what a package exports is no table."""
    root = ast.parse(source)
    exported = {child for node in ast.walk(root) if isinstance(node, ast.Assign) and named(node) for child in ast.walk(node)}
    found = [node for node in ast.walk(root) if node not in exported and knows(node)]
    return sorted({getattr(node, "lineno", 0) or node.iter.lineno for node in found})  # type: ignore[attr-defined]


def named(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)


def files(package: str) -> dict[str, str]:
    every = {file.relative_to(ROOT).as_posix(): file for file in sorted((ROOT / package).rglob("*.py"))}
    return {name: file.read_text() for name, file in every.items()}


@pytest.mark.parametrize("package", PACKAGES)
def test_kinds_are_known_in_the_registries_only(package: str) -> None:
    found = {name: offences(source) for name, source in files(package).items() if not name.startswith((*ELSEWHERE,))}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize("place", ELSEWHERE)
def test_every_exception_is_needed(place: str) -> None:
    assert any(offences(source) for name, source in files(place.split("/")[0]).items() if name.startswith(place))


@pytest.mark.parametrize(
    "source",
    [
        "match mixer:\n    case SSDMixer():\n        pass",
        "match kind:\n    case 'mamba2':\n        pass",
        "KINDS = ('ssd', 'delta')",
        "for module in (ssd, delta): pass",
        "RULES = {'ssd': 1, 'selective': 2}",
        "RULES = {1: ssd.scan, 2: delta.scan}",
        "def f(x: SSDGates | DeltaGates): pass",
        "y = 1 if isinstance(mixer, Mamba2) else 2",
        "if kind == 'delta': pass",
        "if hasattr(mixer, 'key_heads'): pass",
        "made = [x for x in y if isinstance(x, (Mamba1, Attention))]",
    ],
)
def test_a_planted_branch_over_kinds_is_caught(source: str) -> None:
    assert offences(source)


@pytest.mark.parametrize("source", ["x = SSDMixer(1)", "REGISTRY = Registry('x', ssd.KIND, delta.KIND)", "a = (conv, ssd)"])
def test_what_knows_one_kind_is_none(source: str) -> None:
    assert not offences(source)
