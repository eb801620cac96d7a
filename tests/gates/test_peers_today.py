"""The table of the peers of today: what it counts, what it says where nothing is known, and what is written down of them."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance.errors import UnpackError
from perf_gates.gpu.today import build, native, works
from perf_gates.gpu.today.pinned import HERE, pinned
from perf_gates.ratchet.peers import PEERS
from perf_gates.report import peers_today as report
from perf_gates.static.shapes import BATCHES, SSD
from perf_gates.verdicts.measured import TODAY

WORK = replace(works.WORKS[0], shapes={"one": (4, 32, 16, 2)})
SIDES = tuple(WORK.sides)


@pytest.fixture(autouse=True)
def one_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "WORKS", (WORK,))


def timing(side: str, us: float, batch: int = 1, **more: Any) -> dict[str, Any]:
    row = {"work": WORK.name, "model": "one", "batch": batch, "side": side, "us": us, "used": 0.9, "outputs": 1.7e-3}
    return row | {"states": 5e-8, "contract": "fp32"} | more


def part(*rows: dict[str, Any], errors: tuple[str, ...] = ()) -> dict[str, Any]:
    head = {"peers": {"vLLM": "0.33.0", "FlashInfer": "9.9"}}
    return {"timings": list(rows), "errors": list(errors), "machine": head}


def table(rows: list[dict[str, Any]]) -> list[str]:
    return [*report.table(report.measured(part(*rows)))]


def all_sides(ours: float, *theirs: float) -> list[dict[str, Any]]:
    return [timing(side, us, batch) for batch in BATCHES for side, us in zip(SIDES, (ours, *theirs), strict=True)]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (all_sides(1.0, 2.0, 3.0), "In 5 of 5 cells ours is faster than the fastest peer of today."),
        (all_sides(2.5, 2.0, 3.0), "In 0 of 5 cells"),
        (all_sides(2.0, 2.0, 3.0), "In 0 of 5 cells"),
        (all_sides(1.0, 2.0, 3.0)[:-1], "In 4 of 4 cells ours is faster than the fastest peer of today; of 1 more"),
        (all_sides(5.0, 2.0, 3.0)[:-1], "In 0 of 5 cells"),
        (all_sides(1.0, 2.0, 3.0)[1:], "In 4 of 4 cells ours is faster than the fastest peer of today; of 1 more"),
        ([], "unmeasured (5 cells)"),
        (all_sides(float("nan"), 2.0, 3.0), "In 0 of 5 cells"),
    ],
    ids=["leads", "behind", "equal", "a peer missing", "behind though a peer is missing", "ours missing", "nothing", "NaN"],
)
def test_the_headline_counts_cells_in_which_ours_leads_every_peer(rows: list[dict[str, Any]], said: str) -> None:
    assert said in report.headline(report.measured(part(*rows)))


def test_a_side_that_was_not_measured_is_unmeasured_and_says_why() -> None:
    error = str((WORK.name, "one", 1, "vLLM")) + ": PeerMissing: vllm is not there"
    made = part(*(row for row in all_sides(1.0, 2.0, 3.0) if row["side"] != "vLLM"), errors=(error,))
    found = report.measured(made)
    (row,) = [line for line in report.table(found) if "| vLLM |" in line]
    assert row.count("| - ") == len(BATCHES) + 3
    assert row.endswith("| unmeasured |")
    assert list(report.faults(made, found)) == [
        f"{WORK.name}, one, vLLM, batch 1, 4, 16, 64, 256: PeerMissing: vllm is not there"
    ]


def test_the_fastest_of_a_cell_is_bold_and_errors_are_the_largest() -> None:
    rows = all_sides(2.0, 1.0, 3.0)
    rows[-1] |= {"used": 7.0, "states": 1e-3}
    lines = table(rows)
    assert [line.count("**1.00**") for line in lines[2:]] == [0, 5, 0]
    assert "| 7.00 | 1.7e-03 | 1.0e-03 |" in lines[4]


@pytest.mark.parametrize("far", [{"outputs": 0.05}, {"states": float("inf")}, {"outputs": float("nan")}])
def test_a_side_that_is_far_from_float64_is_called_wrong(far: dict[str, float]) -> None:
    rows = all_sides(1.0, 2.0, 3.0)
    rows[1] |= far
    assert [("**wrong**" in line) for line in table(rows)[2:]] == [False, True, False]


def test_a_version_has_the_date_that_was_written_down_for_it_or_none() -> None:
    lines = [*report.peers(part(timing("ours", 1.0)))]
    assert "| vLLM | 0.33.0 | 2026-11-01 | | |" in lines
    assert "| FlashInfer | 9.9 | unknown | | |" in lines


# --- what is written down ---


def test_the_head_names_every_project_that_is_timed() -> None:
    projects = {wheel["project"] for wheel in pinned()["wheel"] if "project" in wheel}
    assert set(PEERS[TODAY]) == projects
    sides = {side.split(",")[0].split(" in ")[0] for work in works.WORKS for side in work.sides} - {works.OURS}
    assert sides == projects


def test_at_least_six_kernels_of_peers_and_two_projects_in_cuda() -> None:
    assert len({(work.name, side) for work in works.WORKS for side in work.sides if side != works.OURS}) >= 6
    assert {library["shim"].split("_")[0] for library in pinned()["library"]} == {"flashinfer", "sglang"}


def test_every_side_in_a_library_finds_it() -> None:
    names = {library["name"] for library in pinned()["library"]}
    wanted = {f"flashinfer_step_p{p}_n{n}_t1" for _, p, n, _ in SSD.values()}
    wanted |= {f"flashinfer_step_p{p}_n{n}_t{works.WINDOW}" for _, p, n, _ in works.NANO.values()}
    wanted |= {f"flashinfer_ring_p{p}_h{h}" for h, p, _, _ in works.RINGS.values()}
    assert names == wanted | {f"sglang_kda_h{h}" for _, h, _, _ in works.PART.values()}


SHIMS = {"flashinfer_step": native.STEP, "flashinfer_ring": native.RING, "sglang_kda": native.KDA}


@pytest.mark.parametrize("shim", SHIMS)
def test_the_arguments_of_a_shim_are_those_that_python_fills(shim: str) -> None:
    source = (HERE / "shims" / f"{shim}.cu").read_text()
    body = re.sub(r"//.*", "", re.search(r"struct Arguments \{(.*?)\};", source, re.DOTALL)[1])  # type: ignore[index]
    declared = [
        (name.strip().lstrip("*"), "void*" if "*" in name else kind)
        for kind, names in re.findall(r"(int|float|void)\s+([^;]+);", body)
        for name in names.split(",")
    ]
    kinds = {"c_int": "int", "c_float": "float", "c_void_p": "void*"}
    assert [(field[0], kinds[field[1].__name__]) for field in SHIMS[shim]._fields_] == declared


# --- the command that makes them ---


def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    compiler = tmp_path / "nvcc"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return compiler


def test_a_library_that_cannot_be_compiled_says_what_the_compiler_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(tmp_path, monkeypatch, "echo 'error: static assertion failed' >&2; exit 1")
    library = pinned()["library"][0]
    with pytest.raises(UnpackError, match=f"nvcc cannot compile {library['name']}: error: static assertion failed"):
        build.built(library, tmp_path, tmp_path)


def test_a_library_is_compiled_with_its_sizes_and_not_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(tmp_path, monkeypatch, f'echo "$@" >> {tmp_path}/said; while [ "$1" != -o ]; do shift; done; touch "$2"')
    library = pinned()["library"][0]
    assert [build.built(library, tmp_path, tmp_path) for _ in range(2)] == ["compiled", "already there"]
    (said,) = (tmp_path / "said").read_text().splitlines()
    assert "-DPEER_P=64 -DPEER_N=128 -DPEER_T=1" in said
    assert said.endswith("flashinfer_step.cu")


def test_without_nvcc_the_command_says_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(UnpackError, match="nvcc is not on PATH"):
        build.compiler()


def test_a_binary_without_the_kernel_is_refused_before_a_driver_is_asked() -> None:
    symbols = bytearray(64 + 2 * 64)
    symbols[40:48], symbols[60:62] = (64).to_bytes(8, "little"), (2).to_bytes(2, "little")
    symbols[64 + 4], symbols[64 + 40] = native.SYMBOLS, 1
    with pytest.raises(native.PeerFailed, match="no kernel of vLLM's binary is gdn"):
        native.made_global(bytes(symbols), "gdn")
