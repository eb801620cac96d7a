"""The kernels' own closures: all of them reached, none changed by a move or a name, each change of a helper seen."""

import re
from pathlib import Path

import pytest

from perf_gates.closure.hashes import Closures, folder_of, kernels
from perf_gates.closure.package import Package
from perf_gates.closure.template import is_jit
from ssmspec_kernels.shared.tuning import H200
from tests.closure.moving import edited, moved


def hashes(package: Path) -> dict[str, str]:
    """Of every launcher, by its name and the hash, so that two of one name are told apart."""
    closures = Closures(Package(package))
    return {f"{d.name} {closures.hash(d)}": closures.hash(d) for d in closures.launchers}


def renamed(package: Path, names: dict[str, str]) -> None:
    """Whole words replaced in every file."""
    words = re.compile(rf"\b({'|'.join(names)})\b")
    for file in package.rglob("*.py"):
        file.write_text(words.sub(lambda found: names[found[0]], file.read_text()))


def test_every_kernel_is_in_the_closure_of_a_launcher() -> None:
    closures = kernels()
    reached = {d for launcher in closures.launchers for d in closures.reached(launcher)}
    assert [d.name for d in closures.package.definitions() if is_jit(closures.package, d) and d not in reached] == []
    assert len(closures.launchers) > 50


def test_every_launcher_of_the_catalogue_has_a_hash() -> None:
    """By the names of entries, which are also those of the results."""
    catalogue = (folder_of("perf_gates") / "budgets.toml").read_text()
    named = set(re.findall(r'^"(\w+) (?!timed)', catalogue, re.MULTILINE))
    assert len(named) > 35
    assert all(kernels().of(name) for name in named)


def test_a_move_of_all_modules_into_folders_changes_no_hash_and_blinds_none(tmp_path: Path) -> None:
    package = moved(tmp_path)
    assert len(list(package.glob("*.py"))) == 1
    assert hashes(package) == hashes(folder_of("ssmspec_kernels"))
    for old, new, launcher in (
        ("bits >> 16", "bits >> 15", "ssd_window"),
        ("l = count - 1 - start", "l = count - 2 - start", "ssd_flush"),
        ("step = tl.inline_asm_elementwise(wait", "step = tl.inline_asm_elementwise(wait + wait", "linear_added"),
    ):
        edited(package, old, new)
        assert Closures(Package(package)).of(launcher) != kernels().of(launcher)
        edited(package, new, old)


def test_other_names_of_functions_locals_and_parameters_change_no_hash(tmp_path: Path) -> None:
    package = moved(tmp_path)
    names = {
        "fold": "fold_history",
        "dot_onto": "accumulate",
        "ssd_scan_kernel": "scan_device_code",
        "hold_layout": "keep_registers",
        "dot_left": "product_left",
        "RESIDENT": "PROGRAMS_AT_ONCE",
        "HEADS_PER_GROUP": "GROUP_SIZE",
        "at_dt": "steps_at",
        "ring_dt": "ring_steps",
    }
    renamed(package, names)
    assert any("fold_history" in file.read_text() for file in package.rglob("*.py"))
    assert sorted(hashes(package).values()) == sorted(hashes(folder_of("ssmspec_kernels")).values())


@pytest.mark.parametrize(
    ("old", "new", "stale", "stand"),
    [
        ("y += window[k]", "y -= window[k]", "conv_step", "norm"),
        ("SMS = 132", "SMS = 148", "ssd_replay_scan", "delta_scan"),
        ('"early_programs": 32 * SMS, "block_p": 16', '"early_programs": 32 * SMS, "block_p": 8', "ssd_scan", "ssd_window"),
        ("return tl.where(slot > -2, x, 0.0)", "return tl.where(slot > -1, x, 0.0)", "ssd_window", "ssd_flush"),
        ('"launch_pdl": True', '"launch_pdl": False', "conv_window", "conv_step"),
    ],
)
def test_only_launchers_that_reach_a_change_have_another_hash(
    old: str, new: str, stale: str, stand: str, tmp_path: Path
) -> None:
    package = moved(tmp_path)
    edited(package, old, new)
    closures = Closures(Package(package))
    assert closures.of(stale) != kernels().of(stale)
    assert closures.of(stand) == kernels().of(stand)


def readers() -> dict[str, set[str]]:
    """The launchers whose closures hold a row of the tuning, by the row; a whole table is no row and raises."""
    closures, found = kernels(), dict[str, set[str]]()
    for launcher in closures.launchers:
        for definition in closures.reached(launcher):
            if (definition.module, definition.name) == ("shared.tuning", "H200"):
                found.setdefault(str(*definition.keys), set()).add(launcher.name)
    return found


SHARED = {"conv_taps", "ssd_state_tile", "ssd_window_tile"}
"""Rows of parts that several launchers call."""
PARTS_OF = {
    "kda_pairs": "kda_tree",
    "delta_apply": "delta_chunked", "delta_tree_products": "delta_tree", "ssd_buffered_short": "ssd_buffered",
    "ssd_tree_large": "ssd_tree_scan",
}  # fmt: skip
"""Rows of kernels that a launcher chooses."""


def test_a_launcher_takes_its_own_row_of_the_tuning_and_those_of_what_it_calls() -> None:
    found = readers()
    assert found.keys() == H200.keys()
    for row, launchers in found.items():
        assert row in SHARED or PARTS_OF.get(row, row) in launchers, row
    alone = {row: launchers for row, launchers in found.items() if launchers == {row}}
    assert len(alone) > 20
    assert found["ssd_scan"] == {"ssd_scan", "ssd_snapshots"}


@pytest.mark.parametrize("row", ["ssd_scan", "delta_scan", "linear_rows", "tree_mask"])
def test_a_changed_row_of_the_tuning_changes_the_hashes_of_those_that_read_it_only(row: str, tmp_path: Path) -> None:
    package = moved(tmp_path)
    (held,) = (file for file in package.rglob("*.py") if "\nH200: dict" in file.read_text())
    text = held.read_text()
    at = text.index(f'"{row}": {{')
    held.write_text(text[:at] + re.sub(r": (\d)", r": 1\1", text[at:], count=1))
    closures = Closures(Package(package))
    before = {launcher.name: kernels().hash(launcher) for launcher in kernels().launchers}
    after = {launcher.name: closures.hash(launcher) for launcher in closures.launchers}
    assert {name for name, code in before.items() if after[name] != code} == readers()[row]
