"""Every axis of a kernel's tensors with its last entries beyond 2^31 elements: the bits of the same tensors close together.

Slots, rows, tokens, heads and channels each reach their place by a product that 32 bits do not hold. Few pages are touched.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ssmspec_kernels.conv_tree import conv_tree
from ssmspec_kernels.conv_window import conv_window
from ssmspec_kernels.delta_chunked import delta_chunked
from ssmspec_kernels.delta_scan import delta_scan
from ssmspec_kernels.delta_tree import delta_tree
from ssmspec_kernels.ssd_buffered import ssd_buffered
from ssmspec_kernels.ssd_gated import ssd_gated
from ssmspec_kernels.ssd_gated_window import ssd_gated_window
from ssmspec_kernels.ssd_replay_scan import Cache, ssd_replay_scan
from ssmspec_kernels.ssd_ring import Ring
from ssmspec_kernels.ssd_scan import ssd_scan
from ssmspec_kernels.ssd_snapshots import ssd_snapshots
from ssmspec_kernels.ssd_tree_scan import ssd_tree_scan
from ssmspec_kernels.ssd_window import ssd_window
from tests.kernels import conv_cases, delta_cases, ssd_cases
from tests.kernels.delta_cases import untouched
from tests.kernels.tensors import far

pytestmark = pytest.mark.interpreter  # where memory that nobody touches takes none

Launch = Callable[[dict[str, Any]], object]
Made = tuple[dict[str, str], dict[str, Tensor], Launch]
"""The axes of tensors, the tensors, and what launches the kernel over such."""

SSD = {"S": "shpn", "x": "bthp", "dt": "bth", "B": "btgn", "C": "btgn", "z": "bthp", "out": "bthp"}
HISTORY = {"hist_x": "slhp", "hist_dt": "slh", "hist_B": "slgn"}
DELTA = {"S": "shkv", "q": "btgk", "k": "btgk", "v": "bthv", "g": "bth", "beta": "bth", "out": "bthv"}
CONV = {"M": "scw", "u": "btc", "out": "btc"}
TREE = torch.ones(3, 3, 3, dtype=torch.bool).tril()


def ssd(kernel: Any, io: str = "bf16", **given: Any) -> Made:
    """A case of three rows, tokens, heads and groups; slots in 32 bits, the last of them taken."""
    o = ssd_cases.Options(h=3, g=3, p=5, n=6, io=io, state="bf16", z=True, spare=0, seed=1)
    case = ssd_cases.draw(o, padding=False)
    tensors = {name: getattr(case, name) for name in ("S", *ssd_cases.TOKENS, "out")} | {"z": case.extra["z"]}
    return SSD, tensors, lambda made: case.call(kernel, **given, **made)


def gated(kernel: Any) -> Made:
    return ssd(kernel, weight=torch.ones(3, 5))


def marked(kernel: Any) -> Made:
    """With marks of the real tokens and, where states are kept, places of theirs."""
    axes, tensors, call = ssd(kernel)
    tensors["live"] = torch.tensor([[True, False, True]] * 3)
    if kernel is ssd_snapshots:
        tensors["places"] = torch.arange(9, dtype=torch.int32).view(3, 3)
        tensors["pool"] = torch.zeros(9, 3, 5, 6)
    return axes | {"live": "bt.", "places": "bt.", "pool": "shpn"}, tensors, call


def past(kernel: Any, io: str, **given: Any) -> Made:
    """With what a kernel keeps of tokens before, 0.5 in all its entries, of which two count."""
    axes, tensors, call = ssd(kernel, io, **given)
    kept, two = tensors["x"].dtype, torch.full((3,), 2, dtype=torch.int32)
    replays = kernel is ssd_replay_scan
    step = kept if replays else torch.float32
    tensors |= {"hist_x": torch.full((3, 6, 3, 5), 0.5, dtype=kept), "hist_B": torch.full((3, 6, 3, 6), 0.5, dtype=kept)}
    tensors["hist_dt"] = torch.full((3, 6, 3), 0.5, dtype=step)

    def launch(made: dict[str, Any]) -> object:
        x, dt, B = (made[name] for name in HISTORY)
        made = {name: tensor for name, tensor in made.items() if name not in HISTORY}
        if replays:
            return call({**made, "cache": Cache(x, dt, B, torch.zeros(3, dtype=torch.int32)), "advanced": two})
        return call({**made, "ring": Ring(x, dt, B, torch.ones(3, dtype=torch.int32), two)})

    return axes | HISTORY, tensors, launch


def delta(kernel: Any, io: str = "bf16", **given: Any) -> Made:
    o = delta_cases.Options(g=3, h=3, k=6, v=9, io=io, state="bf16", spare=0, seed=1)
    case = delta_cases.draw(o, padding=False)
    tensors = {name: getattr(case, name) for name in DELTA}

    def launch(made: dict[str, Any]) -> object:
        for name, x in made.items():
            setattr(case, name, x)
        return case.call(kernel, **given)

    return DELTA, tensors, launch


def conv(kernel: Any, **given: Any) -> Made:
    case = conv_cases.case(conv_cases.Options(t=3, state="bf16", io="bf16", padding=False))
    slots = torch.tensor([6, 0, 2, 4], dtype=torch.int32)
    case.M.copy_(torch.arange(7 * 11 * 4).reshape(7, 11, 4) % 5)
    settings = {**case.settings, "slots": slots, "weight": case.weight, **given}
    return CONV, {"M": case.M, "u": case.u, "out": case.out}, lambda made: kernel(**{**settings, **made})


CASES: dict[str, Callable[[], Made]] = {
    "scan": lambda: ssd(ssd_scan),
    "scan, marked": lambda: marked(ssd_scan),
    "snapshots": lambda: marked(ssd_snapshots),
    "gated": lambda: gated(ssd_gated),
    "gated window": lambda: gated(ssd_gated_window),
    "chain": lambda: ssd(ssd_window),
    "window": lambda: ssd(ssd_window, write_state=False),
    "window, fp16": lambda: ssd(ssd_window, "fp16"),
    "tree": lambda: ssd(ssd_tree_scan, ancestors=TREE),
    "replay": lambda: past(ssd_replay_scan, "bf16"),
    "replay, fp16": lambda: past(ssd_replay_scan, "fp16"),
    "replay of trees, fp16": lambda: past(ssd_replay_scan, "fp16", ancestors=TREE),
    "buffered": lambda: past(ssd_buffered, "bf16"),
    "buffered, apart": lambda: past(ssd_buffered, "bf16", apart=True),
    "buffered, fp16": lambda: past(ssd_buffered, "fp16"),
    "delta scan": lambda: delta(delta_scan),
    "delta window": lambda: delta(delta_chunked, held=False),
    "delta in two launches": lambda: delta(delta_chunked, held=True),
    "delta tree": lambda: delta(delta_tree, ancestors=TREE),
    "convolution": lambda: conv(conv_window),
    "convolution, tree": lambda: conv(conv_tree, parents=torch.tensor([[-1, 0, 0]] * 4)),
}


def axes_of(name: str) -> set[str]:
    """The axes that some tensor of the case has before its last."""
    kept = HISTORY if "replay" in name or "buffered" in name else {}
    axes = DELTA if name.startswith("delta") else CONV if name.startswith("conv") else SSD | kept
    return {letter for of in axes.values() for letter in of[:-1]}


@pytest.mark.parametrize(("name", "axis"), [(name, axis) for name in CASES for axis in sorted(axes_of(name))], ids=str)
def test_an_axis_beyond_2_to_the_31_elements_is_reached(name: str, axis: str) -> None:
    axes, near, launch = CASES[name]()
    launch(near)
    _, made, launch = CASES[name]()
    moved = [key for key in made if axis in axes[key][:-1]]
    spread = made | {key: far(made[key], axes[key].index(axis)) for key in moved}
    launch(spread)
    for key, x in near.items():
        assert untouched(x, spread[key]), key
