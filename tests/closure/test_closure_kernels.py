"""The kernels' own closures: all of them reached, none changed by a move or a name, each change of a helper seen."""

import re
from pathlib import Path

import pytest

from perf_gates.closure.hashes import Closures, folder_of, kernels
from perf_gates.closure.package import Package
from perf_gates.closure.template import is_jit
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
        "unmoved": "hold_layout",
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
