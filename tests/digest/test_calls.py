"""The digest of a call changes with what the compiler and the GPU are given, and with nothing else; on both Tritons."""

from pathlib import Path

import pytest

from perf_gates.digest import trees
from tests.digest.small_tree import KERNEL, write

LAUNCH = "small_kernel[(triton.cdiv(x.shape[0], 64),)](x, y, x.shape[0], tree, BLOCK=64, num_warps=4)"
STORE = "    tl.store(y + at, decay(value) * 3.0 + 1.0, mask=at < n)\n"


def edited(*edits: tuple[str, str]) -> str:
    text = KERNEL
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return text


SAME = {
    "comments, docstrings and lines": edited(("import torch\n", "# a comment\n\n\nimport torch\n"), ("Says nothing", "Else")),
    "another name of a local and of a parameter": edited(
        ("value", "loaded"), ("at ", "lane "), (" + at", " + lane"), ("BLOCK", "TILE")
    ),
    "another name of the kernel and of a function": edited(("small_kernel", "other_kernel"), ("decay", "weight")),
    "a function written out": edited(("decay(value)", "tl.exp(value)")),
    "a branch that is not taken": edited((STORE, f"{STORE}    if BLOCK > 1024:\n        tl.store(y, 0.0)\n")),
    "a module in another folder": KERNEL,
    "a view": edited(("    y = torch", "    x = x.view(256)\n    y = torch")),
}
OTHER = {
    "a tile": edited(("BLOCK=64", "BLOCK=128")),
    "a grid": edited(("triton.cdiv(x.shape[0], 64)", "triton.cdiv(x.shape[0], 64) + 1")),
    "exp2 for exp": edited(("tl.exp(x)", "tl.exp2(x)")),
    "warps": edited(("num_warps=4", "num_warps=8")),
    "stages": edited(("num_warps=4", "num_warps=4, num_stages=2")),
    "registers": edited(("num_warps=4", "num_warps=4, maxnreg=64")),
    "fusion": edited(("num_warps=4", "num_warps=4, enable_fp_fusion=False")),
    "the launch of the next kernel": edited(("num_warps=4", "num_warps=4, launch_pdl=True")),
    "a reload": edited((STORE, f"{STORE}    tl.store(y + at, tl.load(x + at, mask=at < n) + 1.0, mask=at < n)\n")),
    "an argument": edited(("y, x.shape[0], tree", "y, x.shape[0] - 16, tree")),
    "a stride": edited(("    y = torch", "    x = x[::2]\n    y = torch")),
    "the same memory twice": edited(("(x, y, x.shape[0]", "(x, x, x.shape[0]")),
    "a second launch": edited((LAUNCH, f"{LAUNCH}\n    {LAUNCH}")),
    "a copy": edited(("    y = torch", "    x = x.clone()\n    y = torch")),
    "zeros for empty memory": edited(("empty_like", "zeros_like")),
    "a synchronisation": edited(("    return y", "    torch.cuda.synchronize()\n    return y")),
    "a value that is read on the host": edited(("    return y", "    y.cpu()\n    return y")),
}


@pytest.fixture(scope="module", params=["the Triton of the results", "the Triton of the environment"])
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Call and inputs of every variant, by part/operation."""
    tree = write(tmp_path_factory.mktemp("tree"), {"as it is": KERNEL, **SAME, **OTHER})
    triton = trees.folder() if request.param == "the Triton of the results" else None
    work = trees.asked(["small", "other"], entries=False) | {"folder": str(tmp_path_factory.mktemp("codes"))}
    found = trees.recorded(tree, tree / "kernels", triton, [work])["calls"]
    return {f"{part}/{operation}": call for name, call in found.items() for part, _, operation, _ in [name.split("/")]}


@pytest.mark.parametrize("name", SAME)
def test_what_gives_the_same_code_and_launch_has_the_same_digest(name: str, recorded: dict[str, str]) -> None:
    assert recorded[f"small/{name}"] == recorded["small/as it is"]


def test_whatever_changes_the_code_the_launch_or_what_runs_between_launches_has_another_digest(
    recorded: dict[str, str],
) -> None:
    calls = {name: recorded[f"small/{name}"].split()[0] for name in ("as it is", *OTHER)}
    assert [(a, b) for a in calls for b in calls if a < b and calls[a] == calls[b]] == []


def test_another_tree_in_a_timed_case_is_another_input_of_the_same_call(recorded: dict[str, str]) -> None:
    (call, inputs), (other_call, other_inputs) = (recorded[f"{part}/as it is"].split() for part in ("small", "other"))
    assert call == other_call
    assert inputs != other_inputs


def test_without_the_triton_of_the_results_nothing_is_proven_and_the_command_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(trees, "FOLDER", tmp_path)
    with pytest.raises(trees.Unproven, match=f"run `{trees.INSTALL}`"):
        trees.folder()


def test_a_tree_that_fails_says_why(tmp_path: Path) -> None:
    tree = write(tmp_path / "tree", {"as it is": "small = lambda x, tree: 1 / 0\n"})
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        trees.recorded(tree, tree / "kernels", None, [trees.asked(["small"], entries=False)])
