"""The campaign of breaks: it finds places, draws the same ones again, kills what changes a result and nothing else."""

import ast
import json
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.kernels.campaign import cases, run, same, table
from tests.kernels.campaign.draw import Break, draw, found, redraw
from tests.kernels.campaign.keys import Names
from tests.kernels.campaign.places import Place, find, located

SOURCE = b'''"""a < b"""
import triton.language as tl

@triton.jit
def kernel(x, y, stride_x_b, stride_x_t, N: tl.constexpr):
    """c + d"""
    b, t = tl.program_id(0).to(tl.int64), tl.program_id(1)
    n = tl.arange(0, N)
    inside = (n < N) & (t >= 0)
    v = tl.load(x + b * stride_x_b + n, mask=inside, other=0.0)
    for i in range(2):
        v += tl.exp(-v)
    tl.store(y + n, tl.where(inside, v, 0.0).to(y.dtype.element_ty), mask=inside, eviction_policy="evict_first")
'''


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "kernel.py").write_bytes(SOURCE)
    return tmp_path


def breaks(package: Path) -> list[tuple[str, str, str]]:
    places, _ = find(package.glob("*.py"))
    return [(p.kind, SOURCE[p.start : p.end].decode(), new) for p in places for new in p.breaks]


def test_every_kind_of_break_is_found_and_nothing_that_cannot_fail(package: Path) -> None:
    found = breaks(package)
    for wanted in (
        ("comparison", "<", "<="), ("arithmetic", "*", "+"), ("term of a mask dropped", "(n < N) & (t >= 0)", "(n < N)"),
        ("name swapped with a sibling", "stride_x_b", "stride_x_t"), ("name swapped with a sibling", "b", "t"),
        ("value of masked lanes", "0.0", "1.0"), ("loop bound", "2", "2 - 1"), ("sign", "-v", "(v)"),
        ("exponent", "tl.exp(-v)", "(-v)"), ("assignment removed", "v += tl.exp(-v)", "pass"),
        ("branches swapped", "tl.where(inside, v, 0.0)", "tl.where(inside, 0.0, v)"),
        ("cast dropped", "tl.program_id(0).to(tl.int64)", "(tl.program_id(0))"), ("constant", "0", "1"),
    ):  # fmt: skip
        assert wanted in found, wanted
    assert any(kind == "statement removed" and old.startswith("tl.store") for kind, old, _ in found)
    places, left_out = find(package.glob("*.py"))
    assert left_out == Counter(
        {
            "a docstring": 2,
            "an import": 1,
            "a tuning choice": 1,
            "a cast to the type of a pointer, which its store makes itself": 1,
        }
    )
    assert all(p.line > 5 for p in places)


def test_waits_for_another_launch_are_left_out(tmp_path: Path) -> None:
    wait = "    if OVERLAP and not EARLY:\n        tl.gdc_wait()\n"
    (tmp_path / "kernel.py").write_text(f"def _awaited(k):\n    return k * 2\n\n\ndef kernel(k):\n{wait}    k += 1\n")
    places, left_out = find([tmp_path / "kernel.py"])
    assert left_out == Counter({"an order of threads or launches, which the interpreter has not": 2})
    assert {p.line for p in places} == {8}


def test_what_has_the_same_value_or_no_order_is_left_out(tmp_path: Path) -> None:
    source = """
def kernel(b, x, y):
    c = b
    if y:
        c = x + c * 2
    for d in range(2):
        e = c + b
    return any(z for z in (x, y)), f((x, y))
"""
    (tmp_path / "kernel.py").write_text(source)
    places, left_out = find([tmp_path / "kernel.py"])
    assert left_out == Counter({"a name by another of the same value": 1, "an order that nothing sees": 1})
    swaps = [(p.line, source[p.start : p.end], p.breaks) for p in places if "swapped" in p.kind]
    assert (5, "c", ("x", "y")) in swaps
    assert (7, "b", ("x", "y", "c", "d")) in swaps
    assert [text for _, text, _ in swaps if text == "(x, y)"] == ["(x, y)"]


def test_a_break_changes_the_tree_at_its_place_alone(package: Path) -> None:
    places, _ = find(package.glob("*.py"))
    for place in places:
        for text in place.breaks:
            source = Break(place, text).source(package)
            assert source[: place.start] == SOURCE[: place.start]
            assert source.endswith(SOURCE[place.end :])
            assert ast.dump(ast.parse(source)) != ast.dump(ast.parse(SOURCE)), text


def test_the_same_seed_draws_the_same_breaks_and_two_or_more_of_every_kernel() -> None:
    places, _ = find(run.PACKAGE.rglob("[!_]*.py"))
    assert len(places) > 5000
    drawn = draw(places, 3, 60, 2, run.PACKAGE)
    assert drawn == draw(places, 3, 60, 2, run.PACKAGE)
    assert drawn != draw(places, 4, 60, 2, run.PACKAGE)
    assert len({made.place for made in drawn}) == len(drawn)
    had = Counter(made.place.file for made in drawn)
    assert had.keys() == {p.file for p in places}
    assert min(had.values()) == 2
    void = {drawn[0].name}
    assert drawn[0] not in draw(places, 3, 60, 2, run.PACKAGE, void)


def test_files_that_changed_are_drawn_anew_as_many_breaks_from_each() -> None:
    places, _ = find(run.PACKAGE.rglob("[!_]*.py"))
    drawn = redraw(places, 3, {"cursors.py": 4, "double_buffer.py": 1}, run.PACKAGE)
    assert Counter(made.place.file for made in drawn) == {"cursors.py": 4, "double_buffer.py": 1}
    assert drawn == redraw(places, 3, {"cursors.py": 4, "double_buffer.py": 1}, run.PACKAGE)


def test_a_break_that_stands_at_no_place_any_more_has_its_module_drawn_anew(tmp_path: Path) -> None:
    places, _ = find([located(run.PACKAGE, name) for name in ("cursors.py", "double_buffer.py")])
    other, kept = (
        next(Break(p, p.breaks[0]) for p in places if p.file == name) for name in ("cursors.py", "double_buffer.py")
    )
    names = [f"gone#{other.name.partition('#')[2]}", other.name, kept.name]
    header: dict[str, Any] = {"modules": run.module_hashes(), "drawn": names, "anew": [kept.name]}
    (tmp_path / "old.header.json").write_text(json.dumps(header))
    rows = [json.dumps({"name": n, "module": m}) for n, m in zip(names, ("cursors", "cursors", "double_buffer"), strict=True)]
    (tmp_path / "old.jsonl").write_text("\n".join(rows))
    came = run.carried(tmp_path / "old.jsonl", tmp_path / "new.jsonl", places, 2)
    assert came == ([kept], {"cursors.py": 2}, [kept.name])
    assert (tmp_path / "new.jsonl").read_text() == f"{rows[2]}\n"
    header["modules"] = {f"was_{name}": value for name, value in header["modules"].items()}  # other names, the same code
    (tmp_path / "old.header.json").write_text(json.dumps(header))
    rows = [row.replace('"module": "', '"module": "was_') for row in rows]
    (tmp_path / "old.jsonl").write_text("\n".join(rows))
    assert run.carried(tmp_path / "old.jsonl", tmp_path / "new.jsonl", places, 2)[0] == [kept]


PLACE = {"module": "a", "function": "f", "kind": "sign", "old": "-x", "new": "(x)", "source": "y = -x"}


def header_of(*anew: str) -> dict[str, Any]:
    counts = dict.fromkeys(("seed", "places", "count", "each", "void", "killers"), 1)
    return dict.fromkeys(("commit", "kernels"), "0") | counts | {"left_out": {}, "anew": [*anew]}


def test_a_survivor_without_an_argument_makes_no_table() -> None:
    place = PLACE | {"source": "y = -x | 1"}
    rows = [
        {**place, "name": "n", "result": "survived", "first": "survived", "tests": 4},
        {**place, "name": "m", "result": "killed", "first": "survived", "how": "assertion", "by": "tests/kernels/t.py::t"},
    ]
    header = header_of("n")
    with pytest.raises(SystemExit, match="no argument for"):
        table.table(header, rows, {})
    made = table.table(header, rows, {"n": "x is 0"})
    assert "1 of the breaks are in modules that changed" in made
    assert "1 killed, 1 survived (50.0 %)" in made
    assert "| a.f | `-x` to `(x)` in `y = -x \\| 1` | x is 0 |" in made
    assert "| + assertion | `t.py::t` |" in made


def test_a_survivor_that_leaves_the_machine_code_is_no_break() -> None:
    alive = {"result": "survived", "first": "survived", "tests": 4}
    killed = {"result": "killed", "first": "killed", "how": "assertion", "by": "tests/kernels/t.py::t"}
    rows = [{**PLACE, **alive, "name": "n", "same": 2}, {**PLACE, **alive, "name": "m"}, {**PLACE, **killed, "name": "o"}]
    made = table.table(header_of(), rows, {"n": "x is 0", "m": "x is 1"})
    assert "1 of the breaks leave the machine code as it was" in made
    assert "1 killed, 1 survived (50.0 %)" in made
    assert "| x is 0 Compiled for sm_90, 2 kernels have the same instructions. |" in made
    assert "| x is 1 |" in made


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("new", "counted"),
    [
        ("tl.load(at, mask=inside & inside", True),
        pytest.param("tl.load(at + 1, mask=inside", False, marks=pytest.mark.nightly),
    ],
)
def test_machine_code_tells_a_break_from_none(new: str, counted: bool) -> None:
    """Of the taps of a convolution."""
    old = "tl.load(at, mask=inside"
    source = located(run.PACKAGE, "conv_taps.py").read_bytes()
    start = source.index(old.encode())
    line = source[:start].count(b"\n") + 1
    made = Break(Place("conv_taps.py", line, start, start + len(old.encode()), "planted", (new,)), new)
    assert bool(same.same(made)) is counted


def test_a_fresh_draw_is_counted_and_every_survivor_settled() -> None:
    place = {"file": "a.py", "line": 3, "old": "-x", "new": "(x)", "source": "y = -x"}
    drawn: dict[str, Any] = {
        "seed": 5,
        "drawn": 12,
        "kernels": "0",
        "survivor": [
            {**place, "because": "x is 0"},
            {**place, "by": "t.py::t", "added": True},
            {**place, "by": "t.py::u", "added": False},
        ],
    }
    idle = {**drawn, "seed": 6, "within": "a, b", "survivor": drawn["survivor"][:1]}
    made = table.fresh([drawn, idle])
    assert (
        "Seed 5: **3 of 12 survived**. 1 of them change nothing;\n  of the 11 others 2 were missed: 18.2 %, at most 47.0 %."
        in made
    )
    assert "Cases were added for 1 of those; 1 are killed by a case that was not run then." in made
    assert "Seed 6: **1 of 12 survived**. 1 of them change nothing;\n  of the 11 others 0 were missed" in made
    assert "0 were missed: 0.0 %, at most 23.8 %.\n  Line numbers are" in made
    assert made.count("kernels 0.\n  Drawn within a, b.") == made.count("Drawn within") == 1
    assert "| 5 (0) | a.py:3 | `-x` to `(x)` in `y = -x` | `t.py::u` |" in made
    for wrong in (place, {**place, "because": "x is 0", "by": "t.py::t"}):
        with pytest.raises(SystemExit, match=r"a\.py:3"):
            table.fresh([{**drawn, "survivor": [wrong]}])


def test_what_kills_the_survivors_of_fresh_draws_is_there() -> None:
    rows = [row for drawn in tomllib.loads(table.FRESH.read_text())["draw"] for row in drawn["survivor"]]
    assert rows
    for row in rows:
        if "by" in row:
            file, _, test = row["by"].partition("::")
            assert re.search(rf"\b{test}\b", (run.TESTS / file).read_text()), row


def test_tests_that_take_their_cases_from_another_file_are_those_of_its_kernels() -> None:
    every = {"test_far.py", "test_outputs.py", "test_refusals.py", "test_rows.py"}
    assert every <= cases.named(run.TESTS)[cases.EVERY]
    assert all(every <= {*cases.tests_of(kernel, run.PACKAGE, run.TESTS, {})} for kernel in ("gated_norm", "ssd_commit"))
    assert all("test_counted.py" in cases.named(run.TESTS)[kernel] for kernel in ("ssd_buffered", "linear_rows"))


def test_what_is_chosen_by_measurement_is_left_out(tmp_path: Path) -> None:
    functions = "def warps(p):\n    return p * 2\n\n\ndef window_tiles(t):\n    return t <= 16\n"
    made = f'H200: dict = {{"k": {{"warps": 4}}}}\n\n\n{functions}'
    (tmp_path / "kernel.py").write_text(made)
    assert find([tmp_path / "kernel.py"]) == ([], Counter({"a tuning choice": 3}))


def test_every_kernel_has_tests() -> None:
    for file in {p.file for p in find(run.PACKAGE.rglob("[!_]*.py"))[0]}:
        assert cases.tests_of(Path(file).stem, run.PACKAGE, run.TESTS, {}), file


def broken(old: str, new: str) -> Break:
    source = located(run.PACKAGE, "cursors.py").read_text()
    start = len(source[: source.index(old)].encode())
    return Break(Place("cursors.py", 1, start, start + len(old.encode()), "planted", (new,)), new)


def test_a_planted_break_is_killed_and_one_that_changes_nothing_survives() -> None:
    seconds = {"test_cursors.py": 10.0}
    made = [
        broken("held + 2 * WINDOW > CAPACITY", "held + 2 * WINDOW >= CAPACITY"),
        broken("held + 2 * WINDOW > CAPACITY", "held + WINDOW + WINDOW > CAPACITY"),
    ]
    found = dict(run.each(made, lambda tester, one: run.judge(tester, one, seconds), 1))
    row, other = (found[one] for one in made)
    assert (row["result"], row["how"]) == ("killed", "assertion")
    assert "test_the_cursors_follow_the_rule" in row["by"]
    assert other["result"] == "survived"
    assert other["tests"] >= 5  # all of test_cursors.py


def event(error: str, *bases: str) -> dict[str, object]:
    return {"event": "failed", "test": "t", "error": error, "bases": [error, *bases], "text": ""}


def test_what_killed_a_break_is_told_apart(tmp_path: Path) -> None:
    begun = [{"event": "collected", "package": str(tmp_path)}, {"event": "start", "test": "t"}]
    for failed, code, ended, result, how in (
        ([event("builtins.AssertionError")], 1, True, "killed", "assertion"),
        ([event("ssmspec_ref.errors.ShapeMismatch")], 1, True, "killed", "named error: ShapeMismatch"),
        ([event("builtins.IndexError")], 1, True, "killed", "crash: IndexError"),
        ([event("builtins.NameError")], 1, True, "void", None),
        ([], -11, True, "killed", "crash: signal 11"),
        ([], -9, False, "killed", "does not end"),
        ([], 0, True, "survived", None),
    ):
        said = run.verdict([*begun, *failed], code, ended, tmp_path)
        assert said["result"] == result
        assert how is None or said["how"] == how
    assert run.verdict([{"event": "no import", "text": "SyntaxError"}], 2, True, tmp_path)["result"] == "void"
    with pytest.raises(RuntimeError, match="before the tests of the copy"):
        run.verdict([{**begun[0], "package": "elsewhere"}], 0, True, tmp_path)


def named(folder: Path, source: bytes, file: str) -> list[str]:
    """The names of all breaks of a source, in their order."""
    (folder / file).parent.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / file).write_bytes(b"import triton\n" + source)
    names = Names(folder)
    return [names.name(folder / file, (p.start, p.end), p.kind, text) for p in find([folder / file])[0] for text in p.breaks]


def test_a_break_keeps_its_name_when_its_file_moves_and_its_locals_have_other_names(tmp_path: Path) -> None:
    before = named(tmp_path / "a", SOURCE, "here/kernel.py")
    other = re.sub(rb"\bstride_x_(\w)", rb"stride_input_\1", SOURCE.replace(b"    b, t =", b"    # more\n\n    b, t ="))
    for old, new in ((b"b", b"r"), (b"n", b"c"), (b"inside", b"real"), (b"y", b"out")):
        other = re.sub(rb"(?<![\w.])" + old + rb"\b(?!\()", new, other)
    after = named(tmp_path / "b", other, "there/deeper/other.py")
    assert other.count(b"stride_input_b") == 2
    assert after == before
    assert len(set(before)) == len(before) > 20


def test_another_statement_another_break_and_the_second_of_two_alike_have_other_names(tmp_path: Path) -> None:
    twice = SOURCE.replace(b"        v += tl.exp(-v)\n", b"        v += tl.exp(-v)\n        v += tl.exp(-v)\n")
    names, more = named(tmp_path / "a", SOURCE, "x/kernel.py"), named(tmp_path / "b", twice, "x/kernel.py")
    assert {*names} < {*more}
    assert len(more) == len(set(more))
    changed = named(tmp_path / "c", SOURCE.replace(b"-v", b"-v - 1"), "x/kernel.py")
    statements = {name.split(":")[0] for name in names}
    assert len(statements - {name.split(":")[0] for name in changed}) == 1


def test_every_recorded_break_is_found_where_it_stands_now() -> None:
    """But those of statements that have gone: docs/evidence/ledger.md counts them, and another one needs its line there."""
    header, rows = table.load(Path(table.__file__).with_name("breaks.jsonl"))
    made = found(find(run.PACKAGE.rglob("[!_]*.py"))[0], set(header["drawn"]))
    hashes = run.module_hashes()
    lost = [row["name"] for row in rows if row["name"] not in made and header["modules"][row["module"]] in hashes.values()]
    assert lost == []
    assert len(made) >= 85


def test_the_page_is_that_of_the_recorded_breaks() -> None:
    header, rows = table.load(Path(table.__file__).with_name("breaks.jsonl"))
    arguments = {name: " ".join(text.split()) for name, text in tomllib.loads(table.EQUIVALENT.read_text()).items()}
    said = table.table(header, rows, arguments) + table.fresh(tomllib.loads(table.FRESH.read_text())["draw"])
    assert (run.ROOT / "docs" / "evidence" / "kernel-breaks.md").read_text() == said
