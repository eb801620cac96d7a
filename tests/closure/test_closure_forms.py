"""Each form of code that a launcher reaches has a change that its hash sees; what does nothing has one that it does not."""

from pathlib import Path

import pytest

from perf_gates.closure.hashes import Closures
from perf_gates.closure.package import Package, UnresolvedError
from tests.closure.sample import FILES, Edit, written

VECTOR = Path(__file__).parent / "vector.txt"
TILE, LAUNCHERS, LAUNCH, TUNING = "deep/kernels/tile.py", "deep/launchers.py", "shared/launch.py", "shared/tuning.py"
MATH, RECORDS = "shared/math.py", "records.py"


def hashed(folder: Path, *edits: Edit, launcher: str = "scan", **moved: dict[str, str]) -> str:
    return Closures(Package(written(folder, *edits, **moved), {})).of(launcher)


SEEN: dict[str, tuple[Edit, ...]] = {
    "an operator of a kernel": ((TILE, "total +=", "total -="),),
    "a helper of a kernel, through a parent's parent and a re-export": ((MATH, "tl.maximum(x, 0.0)", "tl.maximum(x, 1.0)"),),
    "what a helper calls": ((MATH, "1.0 + e", "2.0 + e"),),
    "a constant of a helper": ((MATH, "tl.constexpr(3)", "tl.constexpr(4)"),),
    "the annotation of a constant": ((MATH, "EXACT: tl.constexpr = ", "EXACT = "),),
    "a helper reached by the attribute of an aliased module": ((MATH, "tl.log(w)", "tl.log2(w)"),),
    "another function under the same name": (("shared/__init__.py", "softplus as soft", "log1p as soft"),),
    "an argument of a decorator": ((TILE, '["run"]', '["slots"]'),),
    "a decorator": ((MATH, "@triton.jit\ndef log1p", "@triton.jit(noinline=True)\ndef log1p"),),
    "the decorator of a host function": ((LAUNCH, "@cache\n", ""),),
    "a default": ((TILE, "STAGES: tl.constexpr = 2", "STAGES: tl.constexpr = 3"),),
    "a default of a launcher": ((LAUNCHERS, "warps: int = 4", "warps: int = 8"),),
    "the annotation of an argument": ((TILE, "T: tl.constexpr, WIDTH", "T, WIDTH"),),
    "the order of parameters": ((TILE, "def part(S, at, scale)", "def part(at, S, scale)"),),
    "the order of arguments": ((TILE, "at=at + t, scale=low", "at=low, scale=at + t"),),
    "inline assembly": ((TILE, "mov.u32 $0, $1;", "mov.b32 $0, $1;"),),
    "a string of a call": ((TILE, '"=r,r"', '"=r,l"'),),
    "the type of a number": ((TILE, "total = 0.0", "total = 0"),),
    "a sign": ((MATH, "exp(-tl", "exp(+tl"),),
    "a name of the language": ((TILE, "dtype=tl.int32", "dtype=tl.int64"),),
    "the wait for the launch before": ((TILE, "gdc_wait", "gdc_launch_dependents"),),
    "a branch of a kernel": ((TILE, "slots is not None", "slots is None"),),
    "the grid": ((LAUNCHERS, "len(S), row", "len(S) + 1, row"),),
    "warps": ((LAUNCHERS, "num_warps=warps", "num_warps=2"),),
    "stages": ((LAUNCHERS, "num_stages=2", "num_stages=3"),),
    "the choice of dependent launch": ((LAUNCH, '"launch_pdl": True', '"launch_pdl": False'),),
    "a branch on the device": ((LAUNCH, "[0] >= 9", "[0] >= 10"),),
    "a branch on the environment": ((LAUNCH, '"SLOW"', '"FAST"'),),
    "the branch of a module that is not taken": ((LAUNCH, "PROGRAMS = 2\n", "PROGRAMS = 3\n"),),
    "an option by a dict": ((LAUNCH, '"enable_fp_fusion": False', '"enable_fp_fusion": True'),),
    "a later change of a value": ((LAUNCH, "append(32)", "append(64)"),),
    "a change of a value by a function that nobody here calls": ((LAUNCH, "PROGRAMS + 1", "PROGRAMS + 2"),),
    "an assignment of a global name by a function": ((LAUNCH, "FEW + 2", "FEW + 3"),),
    "one of several values assigned together": ((LAUNCH, "FEW, MANY = 4, 8", "FEW, MANY = 5, 8"),),
    "a property of an object": ((RECORDS, "self.x.stride(), entry", "self.x.stride(0), entry"),),
    "what a property calls": ((RECORDS, "size * 2", "size * 3"),),
    "a method of an object": ((RECORDS, "return [self.x, first]\n", "return [first, self.x]\n"),),
    "the default of a method": ((RECORDS, "first=1", "first=3"),),
    "a field of a class": ((RECORDS, "size: int = 16", "size: int = 32"),),
    "a subclass that an object may be of": ((RECORDS, "first=2", "first=4"),),
    "a value that only the subclass reads": ((LAUNCH, "FEW, MANY = 4, 8", "FEW, MANY = 4, 9"),),
    "a method of an object of unknown class": ((RECORDS, "by + 7", "by + 8"),),
    "a function in a function": ((LAUNCHERS, "run * cost", "run + cost"),),
    "a lambda": ((LAUNCHERS, "k * lib.PROGRAMS", "k + lib.PROGRAMS"),),
    "a comprehension": ((LAUNCHERS, "range(1, 4)", "range(1, 5)"),),
    "a function that is imported in the function": (
        (LAUNCHERS, "from .kernels.tile import scan_kernel as kernel", "from ..shared.math import unused as kernel"),
    ),
    "a local in the place of another": ((LAUNCHERS, "min(runs, key", "min(y, key"),),
    "a row of the tuning": ((TUNING, '"scan": {"block": 64', '"scan": {"block": 32'),),
    "the row of another GPU": ((TUNING, '"scan": {"block": 128', '"scan": {"block": 64'),),
    "another row": ((LAUNCHERS, 'STAGES["scan"]', 'STAGES["other"]'),),
    "how a message is formatted": ((LAUNCHERS, ":>4}", ":>5}"),),
    "a key by which an argument is given": ((LAUNCHERS, '"T": ring.size, "WIDTH"', '"WIDTH": ring.size, "T"'),),
    "a pattern": ((LAUNCHERS, "case 1 | 2", "case 1 | 3"),),
    "what is caught": ((LAUNCHERS, "(TypeError, ValueError)", "(TypeError,)"),),
}

FREE: dict[str, tuple[Edit, ...]] = {
    "a comment": ((MATH, "# says", "# said otherwise"),),
    "a docstring of a module": ((MATH, '"""Says."""\n\nimport', '"""Said."""\n\nimport'),),
    "a docstring of a kernel": ((MATH, '    """Says."""\n    return', "    return"),),
    "a docstring of a launcher": ((LAUNCHERS, "At length.", "In short."),),
    "a docstring of a class": ((RECORDS, '    """Says."""\n\n', ""),),
    "a string that stands alone": ((LAUNCH, "REGISTRY = {}\n", 'REGISTRY = {}\n"""Who came."""\n'),),
    "pass": ((LAUNCHERS, "    y = torch", "    pass\n    y = torch"),),
    "brackets and lines": (
        (TILE, "    total = 0.0\n", "\n    total = (\n        0.0\n    )\n\n"),
        (TILE, "mask=at < 16, other=0.0", "mask=(at < 16), other=0.0,"),
    ),
    "another way to write a number": ((TILE, "at < 16", "at < 0x10"),),
    "another way to write a string": ((TILE, '"=r,r"', "'=r,' 'r'"),),
    "a function that nobody calls": ((MATH, "return e + 1", "return e + 2"),),
    "another launcher": ((LAUNCHERS, "None, 1, 2.0", "None, 1, 3.0"),),
    "an import that nobody uses": ((TILE, "import triton\n", "import math\nimport triton\n"),),
    "an alias of a module from elsewhere": (
        (MATH, "triton.language as tl", "triton.language as lang"),
        (MATH, "tl.", "lang."),
    ),
    "an alias of a module": ((LAUNCHERS, "launch as lib", "launch as shared"), (LAUNCHERS, "lib.", "shared.")),
    "a name that is imported where it is defined": (
        (TILE, "from ...shared import soft", "from ...shared.math import softplus as soft"),
    ),
    "an import at the head of the file": (
        (LAUNCHERS, "    from .kernels.tile import scan_kernel as kernel\n", ""),
        (
            LAUNCHERS,
            "from .kernels import tile",
            "from .kernels import tile\nfrom sample.deep.kernels.tile import scan_kernel as kernel",
        ),
    ),
    "an annotation in quotes": ((LAUNCHERS, "ring: Ring", 'ring: "Ring"'),),
    "the name of a local": ((TILE, "total", "summed"),),
    "the name of a local of a launcher": ((LAUNCHERS, "best", "chosen"),),
    "the name of a local of a lambda": ((LAUNCHERS, "lambda k: k *", "lambda each: each *"),),
    "the name of a parameter of a kernel, and of the keyword": (
        (TILE, "part(S, at, scale)", "part(S, place, scale)"),
        (TILE, "tl.load(S + at, mask=at < 16", "tl.load(S + place, mask=place < 16"),
        (TILE, "at=at + t", "place=at + t"),
    ),
    "the name of a parameter of the kernel that is launched": (
        (TILE, "run, low,", "run, least,"),
        (TILE, "scale=low", "scale=least"),
        (LAUNCHERS, "low=limit", "least=limit"),
    ),
    "the name of a parameter that a decorator names": (
        (TILE, '["run"]', '["turns"]'),
        (TILE, "slots, run,", "slots, turns,"),
        (TILE, "at * run", "at * turns"),
    ),
    "the name of a parameter that a dict gives": (
        (TILE, "WIDTH", "COLUMNS"),
        (LAUNCHERS, "WIDTH", "COLUMNS"),
    ),
    "the name of a parameter of a launcher": ((LAUNCHERS, "limit", "highest"),),
    "the name of a kernel": ((TILE, "scan_kernel", "walk_kernel"), (LAUNCHERS, "scan_kernel", "walk_kernel")),
    "the name of a helper": ((MATH, "log1p", "log_of_one_more"), (TILE, "log1p", "log_of_one_more")),
    "the name of a value": ((LAUNCH, "PROGRAMS", "RESIDENT"), (LAUNCHERS, "PROGRAMS", "RESIDENT")),
    "the name of a class": ((RECORDS, "Ring", "Cache"), (LAUNCHERS, "Ring", "Cache")),
    "the name of an exception's local": ((LAUNCHERS, "error", "wrong"),),
    "the names of a pattern": (
        (LAUNCHERS, "[first, *rest] if rest", "[head, *tail] if tail"),
        (LAUNCHERS, "return [first]", "return [head]"),
    ),
    "the order of definitions": (
        (RECORDS, "\n\ndef entry(size):\n    return size * 2\n", "\n"),
        (RECORDS, "\n\n@dataclass", "\n\ndef entry(size):\n    return size * 2\n\n\n@dataclass"),
    ),
    "values assigned one by one": ((LAUNCH, "FEW, MANY = 4, 8", "FEW = 4\nMANY = 8"),),
    "a row of the tuning of another launcher": ((TUNING, '"other": {"block": 32', '"other": {"block": 64'),),
    "such a row of another GPU": ((TUNING, '"other": {"block": 16', '"other": {"block": 64'),),
    "such a row of a flat table": ((TUNING, '"other": 2', '"other": 1'),),
    "the name of a row": ((TUNING, '"scan"', '"walk"'), (LAUNCHERS, '"scan"', '"walk"')),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of the sample as it is."""
    return hashed(tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("edits", SEEN.values(), ids=SEEN)
def test_a_planted_change_is_seen(edits: tuple[Edit, ...], plain: str, tmp_path: Path) -> None:
    assert hashed(tmp_path, *edits) != plain


@pytest.mark.parametrize("edits", FREE.values(), ids=FREE)
def test_what_changes_nothing_is_free(edits: tuple[Edit, ...], plain: str, tmp_path: Path) -> None:
    for name, text in {e[0]: FILES[e[0]] for e in edits}.items():
        for _, old, new in (e for e in edits if e[0] == name):
            text = text.replace(old, new)
        compile(text, name, "exec")
    assert hashed(tmp_path, *edits) == plain


def test_a_file_may_move_to_any_folder(plain: str, tmp_path: Path) -> None:
    moved = {MATH: "maths/scalar/exp.py", TILE: "kernels.py", RECORDS: "state/ring.py"}
    edits = (
        (
            "shared/__init__.py",
            "from .math import softplus as soft\nfrom . import math",
            "from ..maths.scalar import exp as math\nfrom ..maths.scalar.exp import softplus as soft",
        ),
        (TILE, "from ...shared import soft", "from .shared import soft"),
        (TILE, "from ... import shared as common", "from . import shared as common"),
        (RECORDS, "from .shared", "from ..shared"),
        (LAUNCHERS, "from ..records", "from ..state.ring"),
        (LAUNCHERS, "from .kernels import tile", "from .. import kernels as tile"),
        (LAUNCHERS, "from .kernels.tile import", "from sample.kernels import"),
    )
    assert hashed(tmp_path / "b", *edits, moved=moved) == plain
    deep = (MATH, "1.0 + e", "2.0 + e")
    assert hashed(tmp_path / "c", *edits, deep, moved=moved) != plain


DYNAMIC: dict[str, Edit] = {
    "getattr": (LAUNCHERS, "lib.COUNT", 'getattr(lib, "COUNT")'),
    "globals": (LAUNCHERS, "lib.COUNT", 'globals()["lib"]'),
    "import_module": (
        LAUNCHERS,
        "    from .kernels.tile import scan_kernel as kernel\n",
        "    import importlib\n\n    kernel = importlib.import_module(gpu).scan_kernel\n",
    ),
    "all names of a module": (
        LAUNCHERS,
        "from .kernels import tile",
        "from .kernels.tile import *\nfrom .kernels import tile",
    ),
    "all names of a module, which one of them is": (
        LAUNCHERS,
        "from ..shared.tuning import GPUS, STAGES, WHOLE",
        "from ..shared.tuning import *",
    ),
    "a name that is bound nowhere": (LAUNCHERS, "time(k)", "clock(k)"),
    "a name that no module has": (LAUNCHERS, "GPUS, STAGES, WHOLE", "GPUS, STAGES, WHOLE, NONE"),
    "a module that is not there": (LAUNCHERS, "from ..records import", "from ..recorded import"),
    "an import beyond the package": (LAUNCHERS, "from ..records import", "from ....records import"),
    "a module as a value": (LAUNCHERS, "given(S)", "given(lib)"),
    "the names of an object": (LAUNCHERS, "lib.COUNT", "S.__dict__"),
    "a class in a function": (LAUNCHERS, "    y = torch", "    class Local:\n        pass\n\n    y = torch"),
    "an import and an assignment of one name": (LAUNCHERS, "def other(S)", "STAGES = {}\n\n\ndef other(S)"),
    "a row that is not there": (TUNING, '"scan": 3, "other"', '"other"'),
    "an asynchronous function": (LAUNCHERS, "def given(", "async def given("),
}


@pytest.mark.parametrize("edit", DYNAMIC.values(), ids=DYNAMIC)
def test_what_cannot_be_followed_is_refused(edit: Edit, tmp_path: Path) -> None:
    used = (LAUNCHERS, "given(S)", "given(NONE)") if "NONE" in edit[2] else (LAUNCHERS, "given(S)", "given(S)")
    with pytest.raises(UnresolvedError):
        hashed(tmp_path, edit, *(used,) if edit[1] not in used[1] else ())


def test_a_table_says_what_a_computed_name_may_find(tmp_path: Path) -> None:
    dynamic = {"deep.launchers.given": ["shared.math.unused"]}
    edit = (LAUNCHERS, "thing.moved(3)", 'getattr(thing, "x")')

    def found(name: str, *edits: Edit) -> str:
        return Closures(Package(written(tmp_path / name, edit, *edits), dynamic)).of("scan")

    assert found("a") != found("b", (MATH, "return e + 1", "return e + 2"))
    assert found("a") == found("c", (MATH, "unused(e):\n    return e + 1", "unused(g):\n    return g + 1"))


def test_names_that_a_caller_may_depend_on_are_kept(plain: str, tmp_path: Path) -> None:
    """Two parameters change names: their values change places where a dict gives them by name, and so does the hash."""
    swapped = (
        (TILE, "T: tl.constexpr, WIDTH: tl.constexpr,", "WIDTH: tl.constexpr, T: tl.constexpr,"),
        (TILE, "(0, T, num_stages", "(0, WIDTH, num_stages"),
        (TILE, "soft(total) * WIDTH", "soft(total) * T"),
    )
    assert hashed(tmp_path / "b", *swapped) != plain
    by_grid = (
        LAUNCHERS,
        'kernel[(triton.cdiv(len(S), row["block"]), *ring.strides)]',
        'kernel[lambda meta: (meta["WIDTH"],)]',
    )
    assert hashed(tmp_path / "c", by_grid) != hashed(tmp_path / "d", by_grid, *swapped)
    computed = (LAUNCHERS, '"T": ring.size, "WIDTH"', '"T": ring.size, gpu')
    assert hashed(tmp_path / "e", computed) != hashed(tmp_path / "f", computed, *swapped)


def test_the_text_is_the_committed_one_on_every_python(tmp_path: Path) -> None:
    """Written by Python 3.11.7; 3.12.1 and 3.13.0 write the same."""
    closures = Closures(Package(written(tmp_path), {}))
    found = {name: closures.text(closures.launcher(name)) for name in ("scan", "other")}
    text = "".join(f"{name} {closures.of(name)}\n{found[name]}\n\n" for name in found)
    assert text == VECTOR.read_text()


def test_only_a_function_that_launches_is_a_launcher(tmp_path: Path) -> None:
    closures = Closures(Package(written(tmp_path), {}))
    assert {d.name for d in closures.launchers} == {"scan", "other"}
    with pytest.raises(UnresolvedError, match="given: the package has no launcher of this name"):
        closures.of("given")


def test_the_whole_is_that_of_all_launchers(tmp_path: Path) -> None:
    first, second = (
        Closures(Package(written(tmp_path / name, *edits), {}))
        for name, edits in {"a": (), "b": ((LAUNCHERS, "None, 1, 2.0", "None, 1, 3.0"),)}.items()
    )
    assert first.of("scan") == second.of("scan")
    assert first.of("other") != second.of("other")
    assert first.whole() != second.whole()
    assert first.whole() == first.of("scan", "other") == first.of("other", "scan")
