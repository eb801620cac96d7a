"""Planted faults are found by function and statement, wherever a module lies; one that is not in one place is refused."""

from pathlib import Path

import pytest

from tests.kernels.mutants import Source, planted, sources

HELPER = "def fold(x):\n    y = x + 1\n    return y\n\n\ndef other(x):\n    y = x + 1\n    return y * 2\n"
RING = "from ..shared.helper import fold\n\n\nclass Ring:\n    def size(self):\n        return fold(3)\n\n\nLIMIT = 8\n"
LAUNCHER = "from .ring import LIMIT, Ring\n\n\ndef launch(x):\n    return Ring().size() + LIMIT + x\n"
UNUSED = "def fold(x):\n    y = x + 1\n    return y\n"


def package(folder: Path) -> dict[str, Source]:
    texts = {"shared/helper": HELPER, "ssd/ring": RING, "ssd/launcher": LAUNCHER, "unused": UNUSED}
    for name, text in texts.items():
        file = folder / "made" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (folder / "made" / "__init__.py").write_text("")
    return sources(folder / "made")


@pytest.mark.parametrize(
    ("old", "at", "path", "line"),
    [
        ("y = x + 1", "fold", "shared/helper.py", 2),
        ("y = x + 1", "other", "shared/helper.py", 7),
        ("return y * 2", None, "shared/helper.py", 8),
        ("fold(3)", "Ring.size", "ssd/ring.py", 6),
        ("8", "LIMIT", "ssd/ring.py", 9),
        ("LIMIT + x", None, "ssd/launcher.py", 5),
    ],
)
def test_a_fault_is_planted_in_its_function(old: str, at: str | None, path: str, line: int, tmp_path: Path) -> None:
    source, start = planted(package(tmp_path), "ssd.launcher", old, at)
    assert (source.path, source.text[:start].count("\n") + 1) == (path, line)
    assert source.text.startswith(old, start)


def test_a_fault_is_found_where_its_module_has_gone(tmp_path: Path) -> None:
    moved = tmp_path / "made"
    for name, text in (("deep/maths", HELPER), ("ssd/circle", RING.replace("shared.helper", "deep.maths"))):
        (moved / name).parent.mkdir(parents=True)
        (moved / f"{name}.py").write_text(text)
    (moved / "ssd" / "launcher.py").write_text(LAUNCHER.replace(".ring", ".circle"))
    (moved / "__init__.py").write_text("")
    found, start = planted(sources(moved), "ssd.launcher", "y = x + 1", "fold")
    assert (found.path, start) == ("deep/maths.py", HELPER.index("y = x + 1"))


@pytest.mark.parametrize(
    ("old", "at", "times"),
    [("y = x + 1", None, 2), ("y = x + 1", "launch", 0), ("y = x + 2", "fold", 0), ("y", "fold", 2), ("x", "nobody", 0)],
)
def test_a_fault_that_is_not_in_one_place_is_refused(old: str, at: str | None, times: int, tmp_path: Path) -> None:
    with pytest.raises(LookupError, match=f"stands {times} times in {at or 'ssd.launcher'}"):
        planted(package(tmp_path), "ssd.launcher", old, at)
