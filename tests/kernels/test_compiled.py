"""Compiled kernels: no spills, wide loads of the state, no store that is not declared, and the committed budgets.

Interpreted kernels cannot be compiled in the same process, so that all compilation happens in others.
"""

import json
import os
import subprocess
import sys
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import triton

from conformance.main import run_command
from perf_gates.digest.texts import text
from perf_gates.static import capture, catalogue, compiled, ptx
from perf_gates.static.capture import launches_of
from perf_gates.static.compiled import Cost, Made
from perf_gates.static.entry import ARCHITECTURES, Entry

pytestmark = pytest.mark.interpreter

ROOT = Path(__file__).parent.parent.parent
COST = Cost(registers=64, spills=0, stack=0, shared=256, loads=20, wide_loads=8, stores=9)
MADE = Made(triton.__version__, {})


def run(*args: str) -> subprocess.CompletedProcess[str]:
    """Python without the interpreter, over the same packages; what is not installed is found in the checkout."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = os.pathsep.join([*(p for p in sys.path if p), str(ROOT)])
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, env=env, cwd=ROOT)


@pytest.fixture(scope="module")
def probe() -> dict[str, Any]:
    done = run("-m", "tests.kernels.planted_costs")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.nightly
def test_the_kernels_keep_their_budgets_and_none_of_these_spills() -> None:
    """A fixed part of the catalogue, an entry of each launcher for sm_90; a verification for all three architectures.

    CI compares the launches whose budgets these are.
    """
    done = run("-m", "perf_gates.static.compiled", "--quick", "--jobs", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", 0 faults" in done.stdout
    assert all(f"ssd_scan_kernel sm_{capability}" in done.stdout for capability in ARCHITECTURES)


def test_every_launcher_has_an_entry_that_the_tests_compile() -> None:
    entries = list(catalogue.entries())
    assert {entry.kernel for entry in entries} == {entry.kernel for entry in entries if 90 in entry.quick}


def test_the_page_says_how_much_is_compiled() -> None:
    entries = list(catalogue.entries())
    pairs, quick = sum(len(entry.on) for entry in entries), sum(len(entry.quick) for entry in entries)
    page = (ROOT / "docs" / "evidence" / "not-tested.md").read_text(encoding="utf-8")
    assert f"The catalogue has {pairs} pairs of an entry and an architecture" in page
    assert f"The tests compile {quick} pairs" in page


@pytest.mark.parametrize(
    "capabilities", [pytest.param(("90",)), pytest.param(("80", "90", "100"), marks=pytest.mark.nightly)], ids=" ".join
)
def test_the_budgets_are_of_the_current_launches(capabilities: tuple[str, ...]) -> None:
    """What is not compiled here, and the table behind these tests, is read from them.

    In CI an entry of each launcher; all of them if the text of the kernels changed since the budgets were written.
    """
    some = ["--quick"] if capabilities == ("90",) and compiled.budgets()[0].code == text() else []
    done = run("-m", "perf_gates.static.compiled", "--stale", *some, "--sm", *capabilities)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " budgets are of the current launches" in done.stdout


def test_only_budgets_of_everything_are_of_the_whole_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a part keep the hash of the text that all were written with."""
    held = replace(MADE, code="older")
    monkeypatch.setattr(compiled, "BUDGETS", tmp_path / "budgets.toml")
    monkeypatch.setattr(compiled, "launched", lambda: iter([("norm x 0:kernel sm_90", None, 90)]))
    monkeypatch.setattr(compiled, "everything", lambda: iter([next(e for e in catalogue.entries() if e.kernel == "norm")]))
    for part, code in ((["--only", "norm"], "older"), (["--quick"], "older"), (["--sm", "90"], "older"), ([], text())):
        compiled.BUDGETS.write_text(compiled.budgets_text(held, {}))
        run_command(compiled.main, ["--write", *part])
        assert compiled.budgets()[0].code == code


def test_a_launch_that_changed_is_named_with_the_command() -> None:
    held = replace(MADE, launches={"k": "of another", "l": "the same"})
    (line,) = compiled.stale(held, {"k": "now", "l": "the same"})
    assert line == f"k: the budget is for another launch; run `{compiled.REWRITE}`"
    assert compiled.compare({"k": COST}, replace(MADE, launches={"k": "now"}), held, {"k": COST}) == [line]


def test_budgets_of_another_triton_are_not_written_in_part(tmp_path: Path) -> None:
    code = """if True:
        import sys
        from pathlib import Path
        from conformance.main import run_command
        from perf_gates.static import compiled
        compiled.BUDGETS = Path(sys.argv[1])
        compiled.everything = lambda: iter([next(e for e in compiled.catalogue.entries() if e.name.startswith("norm "))])
        sys.exit(run_command(compiled.main, ["--write", *sys.argv[2:]]))
    """
    file = tmp_path / "budgets.toml"
    file.write_text(compiled.budgets_text(replace(MADE, triton="0.1", launches={"a b": "c"}), {"a b": COST}))
    before = file.read_text()
    for part in (["--quick"], ["--only", "norm"]):
        done = run("-c", code, str(file), *part)
        assert done.returncode == 2
        assert f"the budgets are for triton 0.1, but this is {MADE.triton}" in done.stderr
    assert file.read_text() == before


def test_every_kernel_of_the_package_is_in_the_catalogue(probe: dict[str, Any]) -> None:
    assert probe["uncovered"] == []


def test_a_sound_kernel_is_found_without_fault(probe: dict[str, Any]) -> None:
    assert probe["judged"]["sound"] == []


def test_kernels_compile_where_states_are_stored_in_16_bits() -> None:
    """`ssd_tree_scan` gives its kernel of large trees states in fp32 alone, whose bits that kernel cuts."""
    done = run("-m", "tests.kernels.half_states")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found["seen"]) >= 30
    assert found["failed"] == ["ssd_tree_large_kernel"]


@pytest.mark.parametrize(
    ("planted", "message"),
    [
        ("a verification that stores the state", "writes ['S', 'y'], but declares ['y']"),
        ("a state read 4 bytes at a time", "loads S by 4 bytes, not 16"),
        ("a tile that no register file holds", "spills "),
    ],
)
def test_a_planted_fault_is_caught(probe: dict[str, Any], planted: str, message: str) -> None:
    assert any(fault.startswith(message) for fault in probe["judged"][planted])


@pytest.mark.parametrize(("figure", "value"), [("registers", 63), ("registers", 65), ("stores", 10), ("wide_loads", 0)])
def test_a_figure_that_moves_either_way_fails_and_names_the_command(figure: str, value: int) -> None:
    moved = replace(COST, **{figure: value})
    (line,) = compiled.compare({"k": moved}, MADE, MADE, {"k": COST})
    assert line == f"k: {figure} {getattr(COST, figure)} -> {value}; if this is intended, run `{compiled.REWRITE}`"


def test_a_kernel_without_a_budget_and_budgets_of_another_triton_fail() -> None:
    assert compiled.compare({"k": COST}, MADE, MADE, {"k": COST}) == []
    assert compiled.compare({"k": COST}, MADE, MADE, {}) == [f"k: no budget; run `{compiled.REWRITE}`"]
    (line,) = compiled.compare({"k": COST}, MADE, replace(MADE, triton="0.1"), {"k": COST})
    assert line.startswith("the budgets are for triton 0.1, but")


def test_an_entry_that_spills_has_a_reason_and_no_other() -> None:
    _, budget = compiled.budgets()
    spilling = {name.rsplit(" ", 2)[0] for name, cost in budget.items() if cost.spills}
    assert spilling == set(compiled.reasons())
    assert all(compiled.reasons().values())
    assert compiled.idle(["k v s"], {"k v s 0:kernel sm_90": replace(COST, spills=8)}) == []
    (line,) = compiled.idle(["k v s"], {"k v s 0:kernel sm_90": COST})
    assert line == "k v s: has a reason to spill in spills.toml, but does not spill; remove the reason"


def test_spills_are_a_fault_without_a_reason_and_a_block_too_large_always() -> None:
    spilling, large = replace(COST, spills=8), replace(COST, shared=2**20)
    assert list(compiled._too_large(spilling, 90, may_spill=False)) == ["spills 8 bytes"]
    assert list(compiled._too_large(spilling, 90, may_spill=True)) == []
    assert len(list(compiled._too_large(large, 90, may_spill=True))) == 1


def test_budgets_come_back_as_they_were_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "BUDGETS", tmp_path / "budgets.toml")
    made = replace(MADE, launches={"a b": "x", "c": "y"}, code="z")
    compiled.BUDGETS.write_text(compiled.budgets_text(made, {"a b": COST, "c": replace(COST, stores=0)}))
    assert compiled.budgets() == (made, {"a b": COST, "c": replace(COST, stores=0)})


def test_launches_cannot_be_recorded_in_the_interpreter() -> None:
    with pytest.raises(RuntimeError, match="unset it and start again"):
        launches_of(lambda: None)


def test_a_descriptor_takes_its_sizes_and_strides_behind_it_and_a_constant_nothing() -> None:
    assert capture.taken("N", "constexpr") == []
    assert capture.taken("y", "*bf16") == [("y", "*bf16")]
    kind = "tensordesc<bf16[1, 64, 128]>"
    assert capture.taken("K", kind) == [("K", kind), *[("K.size", "i32")] * 3, *[("K.stride", "i64")] * 3]


def test_a_tuple_takes_what_its_values_take_and_a_pointer_in_it_has_its_name() -> None:
    Strided: Any = namedtuple("Strided", "ptr stride size")
    strided = Strided("*bf16", "constexpr", "i32")
    assert capture.taken("x", strided) == [("x", "*bf16"), ("x.size", "i32")]
    assert capture.taken("at", ("i32", ("i64", strided))) == [
        ("at.0", "i32"),
        ("at.1.0", "i64"),
        ("at.1.1", "*bf16"),
        ("at.1.1.size", "i32"),
    ]


def test_an_address_leads_to_the_pointer_it_was_computed_from() -> None:
    text = """
    ld.param.b64 %rd1, [_k_param_0];
    ld.param.b64 %rd2, [_k_param_2];
    ld.param.b32 %r1, [_k_param_1];
    @%p1 ld.global.b32 { %r2 }, [ %rd2 + 0 ];
    mad.wide.s32 %rd3, %r2, 4, %rd1;
    $L__BB0_1:
    add.s64 %rd3, %rd3, 512;
    @%p2 ld.global.L1::evict_first.v4.b32 { %r3, %r4, %r5, %r6 }, [ %rd3 + 16 ];
    cp.async.cg.shared.global [ %r9 + 0 ], [ %rd3 + 0 ], 0x10, %r8;
    st.shared.b32 [ %r9 + 0 ], %r3;
    @!%p3 st.global.v2.b16 [ %rd3 + 0 ], { %rs1, %rs2 };
    atom.global.gpu.acq_rel.add.u32 %r7, [%rd2], 1;
    """
    found = ptx.accesses(text, [("S", "*fp32"), ("n", "i32"), ("slots", "*i32")])
    assert [(a.kind, a.bytes, sorted(a.owners)) for a in found] == [
        ("load", 4, ["slots"]),
        ("load", 16, ["S"]),
        ("load", 16, ["S"]),
        ("store", 4, ["S"]),
        ("atomic", 4, ["slots"]),
    ]


def test_a_pointer_that_went_through_shared_memory_is_one_of_those_put_there() -> None:
    text = """
    ld.param.b64 %rd1, [_k_param_0];
    ld.param.b64 %rd2, [_k_param_1];
    add.s64 %rd3, %rd1, 8;
    st.shared.b64 [ %r1 + 0 ], %rd3;
    ld.shared.b64 %rd4, [%r2+128];
    @%p1 st.global.b32 [ %rd4 + 0 ], { %r3 };
    st.global.b32 [ %rd9 + 0 ], { %r3 };
    """
    found = ptx.accesses(text, [("half", "*i32"), ("slots", "*i32")])
    assert [sorted(a.owners) for a in found] == [["half"], []]


def test_a_store_of_unknown_origin_is_a_fault() -> None:
    accesses = [ptx.Access("store", 4, frozenset({"y"})), ptx.Access("store", 4, frozenset())]
    entry = Entry("k", "v", "s", lambda: None, frozenset({"y"}), frozenset({"S"}))
    assert list(compiled._undeclared(entry, accesses)) == [
        "writes through 1 addresses of unknown origin",
        "does not read ['S'], declared wide",
    ]


def test_an_argument_of_a_tuple_is_named_as_one_that_is_alone() -> None:
    stores = [ptx.Access("store", 4, frozenset({"ring.B"})), ptx.Access("store", 16, frozenset({"S"}))]
    assert compiled.arguments(stores) == {"ring_B", "S"}
