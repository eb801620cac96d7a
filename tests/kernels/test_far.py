"""Every axis of a kernel's tensors with its last entries beyond 2^31 elements: the bits of the same tensors close together.

Slots, rows, tokens, heads and channels each reach their place by a product that 32 bits do not hold. Few pages are touched.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from ssmspec_kernels.conv import conv_tree, conv_window
from ssmspec_kernels.delta import delta_chunked, delta_scan, delta_tree
from ssmspec_kernels.kda import kda_scan, kda_tree
from ssmspec_kernels.ssd import ssd_gated, ssd_gated_window, ssd_scan, ssd_snapshots, ssd_tree_scan, ssd_window
from ssmspec_kernels.ssd.replay import ssd_replay_scan
from ssmspec_kernels.ssd.replay.ssd_replay_scan import Cache
from ssmspec_kernels.ssd.ring import ssd_buffered
from ssmspec_kernels.ssd.ring.ssd_ring import Ring
from tests.kernels import conv_cases, delta_cases, ssd_cases
from tests.kernels.delta_cases import untouched
from tests.kernels.mutants import caught, mutated
from tests.kernels.tensors import far

pytestmark = pytest.mark.interpreter  # where memory that nobody touches takes none

Launch = Callable[[dict[str, Any]], object]
Made = tuple[dict[str, str], dict[str, Tensor], Launch]
"""The axes of tensors, the tensors, and what launches the kernel over such."""

SSD = {"S": "shpn", "x": "bthp", "dt": "bth", "B": "btgn", "C": "btgn", "z": "bthp", "out": "bthp"}
HISTORY = {"hist_x": "slhp", "hist_dt": "slh", "hist_B": "slgn"}
DELTA = {"S": "shkv", "q": "btgk", "k": "btgk", "v": "bthv", "g": "bth", "beta": "bth", "out": "bthv"}
CONV = {"M": "scw", "u": "btc", "out": "btc"}


def tree(nodes: int = 3) -> Tensor:
    """Chains, as trees."""
    return torch.ones(3, nodes, nodes, dtype=torch.bool).tril()


def ssd(kernel: Any, io: str = "bf16", **given: Any) -> Made:
    """A case of three rows, tokens, heads and groups; slots in 32 bits, the last of them taken."""
    return drawn(kernel, ssd_cases.Options(h=3, g=3, p=5, n=6, io=io, state="bf16", z=True, spare=0, seed=1), **given)


def large(kernel: Any) -> Made:
    """The least tree that the kernel of large trees takes."""
    o = ssd_cases.Options(t=33, h=3, g=3, p=80, n=128, io="bf16", spare=0, seed=1)
    return drawn(kernel, o, ancestors=tree(33))


def drawn(kernel: Any, o: ssd_cases.Options, **given: Any) -> Made:
    case = ssd_cases.draw(o, padding=False)
    tensors = {name: getattr(case, name) for name in ("S", *ssd_cases.TOKENS, "out")}
    if o.z:
        tensors["z"] = case.extra["z"]
    return SSD, tensors, lambda made: case.call(kernel, **given, **made)


def gated(kernel: Any) -> Made:
    return ssd(kernel, weight=torch.ones(3, 5))


def marked(kernel: Any) -> Made:
    """With marks of the real tokens and, where states are kept, places of theirs."""
    axes, tensors, call = ssd(kernel)
    tensors["live"] = torch.tensor([[True, False, True]] * 3)
    if kernel.__name__ == "ssd_snapshots":
        tensors["places"] = torch.arange(9, dtype=torch.int32).view(3, 3)
        tensors["pool"] = torch.zeros(9, 3, 5, 6)
    return axes | {"live": "bt.", "places": "bt.", "pool": "shpn"}, tensors, call


def past(kernel: Any, io: str, entries: int = 6, **given: Any) -> Made:
    """With what a kernel keeps of tokens before, 0.5 in all entries, of which two count. A ring of 6 is due, of 8 not."""
    axes, tensors, call = ssd(kernel, io, **given)
    kept, two = tensors["x"].dtype, torch.full((3,), 2, dtype=torch.int32)
    replays = kernel.__name__ == "ssd_replay_scan"
    step = kept if replays else torch.float32
    tensors |= {
        "hist_x": torch.full((3, entries, 3, 5), 0.5, dtype=kept),
        "hist_B": torch.full((3, entries, 3, 6), 0.5, dtype=kept),
    }
    tensors["hist_dt"] = torch.full((3, entries, 3), 0.5, dtype=step)

    def launch(made: dict[str, Any]) -> object:
        x, dt, B = (made[name] for name in HISTORY)
        made = {name: tensor for name, tensor in made.items() if name not in HISTORY}
        if replays:
            return call({**made, "cache": Cache(x, dt, B, torch.zeros(3, dtype=torch.int32)), "advanced": two})
        return call({**made, "ring": Ring(x, dt, B, torch.full((3,), entries - 5, dtype=torch.int32), two)})

    return axes | HISTORY, tensors, launch


def delta(kernel: Any, t: int = 3, channel: bool = False, **given: Any) -> Made:
    o = delta_cases.Options(t=t, g=3, h=3, k=6, v=9, io="bf16", state="bf16", channel=channel, spare=0, seed=1)
    case = delta_cases.draw(o, padding=False)
    tensors = {name: getattr(case, name) for name in DELTA}

    def launch(made: dict[str, Any]) -> object:
        for name, x in made.items():
            setattr(case, name, x)
        return case.call(kernel, **given)

    return DELTA | ({"g": "bthk"} if channel else {}), tensors, launch


def conv(kernel: Any, **given: Any) -> Made:
    case = conv_cases.case(conv_cases.Options(t=3, state="bf16", io="bf16", padding=False))
    slots = torch.tensor([6, 0, 2, 4], dtype=torch.int32)
    case.M.copy_(torch.arange(7 * 11 * 4).reshape(7, 11, 4) % 5)
    settings = {**case.settings, "slots": slots, "weight": case.weight, **given}
    return CONV, {"M": case.M, "u": case.u, "out": case.out}, lambda made: kernel(**{**settings, **made})


CASES: dict[str, tuple[ModuleType, Callable[[Any], Made]]] = {
    "scan": (ssd_scan, lambda m: ssd(m.ssd_scan)),
    "scan, marked": (ssd_scan, lambda m: marked(m.ssd_scan)),
    "snapshots": (ssd_snapshots, lambda m: marked(m.ssd_snapshots)),
    "gated": (ssd_gated, lambda m: gated(m.ssd_gated)),
    "gated window": (ssd_gated_window, lambda m: gated(m.ssd_gated_window)),
    "chain": (ssd_window, lambda m: ssd(m.ssd_window)),
    "window": (ssd_window, lambda m: ssd(m.ssd_window, write_state=False)),
    "window, fp16": (ssd_window, lambda m: ssd(m.ssd_window, "fp16")),
    "tree": (ssd_tree_scan, lambda m: ssd(m.ssd_tree_scan, ancestors=tree())),
    "large tree": (ssd_tree_scan, lambda m: large(m.ssd_tree_scan)),
    "replay": (ssd_replay_scan, lambda m: past(m.ssd_replay_scan, "bf16")),
    "replay, fp16": (ssd_replay_scan, lambda m: past(m.ssd_replay_scan, "fp16")),
    "replay of trees, fp16": (ssd_replay_scan, lambda m: past(m.ssd_replay_scan, "fp16", ancestors=tree())),
    "buffered": (ssd_buffered, lambda m: past(m.ssd_buffered, "bf16")),
    "buffered, open": (ssd_buffered, lambda m: past(m.ssd_buffered, "bf16", entries=8)),
    "buffered, apart": (ssd_buffered, lambda m: past(m.ssd_buffered, "bf16", apart=True)),
    "buffered, apart, open": (ssd_buffered, lambda m: past(m.ssd_buffered, "bf16", entries=8, apart=True)),
    "buffered, fp16": (ssd_buffered, lambda m: past(m.ssd_buffered, "fp16")),
    "delta scan": (delta_scan, lambda m: delta(m.delta_scan)),
    "delta window": (delta_chunked, lambda m: delta(m.delta_chunked, two_launches=False)),
    "delta in two launches": (delta_chunked, lambda m: delta(m.delta_chunked, two_launches=True)),
    "delta tree": (delta_tree, lambda m: delta(m.delta_tree, ancestors=tree())),
    "delta, large tree": (delta_tree, lambda m: delta(m.delta_tree, 33, ancestors=tree(33), inverse=False)),
    "delta, large tree, products": (delta_tree, lambda m: delta(m.delta_tree, 33, ancestors=tree(33), inverse=True)),
    "delta by channel": (kda_scan, lambda m: delta(m.kda_scan, channel=True)),
    "delta by channel, tree": (kda_tree, lambda m: delta(m.kda_tree, channel=True, ancestors=tree())),
    "convolution": (conv_window, lambda m: conv(m.conv_window)),
    "convolution, tree": (conv_tree, lambda m: conv(m.conv_tree, parents=torch.tensor([[-1, 0, 0]] * 4))),
}


def axes_of(name: str) -> set[str]:
    """The axes that some tensor of the case has before its last."""
    kept = HISTORY if "replay" in name or "buffered" in name else {}
    axes = DELTA if name.startswith("delta") else CONV if name.startswith("conv") else SSD | kept
    return {letter for of in axes.values() for letter in of[:-1]}


def check(module: Any, case: tuple[str, str]) -> None:
    """The bits of a kernel of the module do not change when an axis of its tensors is spread."""
    name, axis = case
    make = CASES[name][1]
    axes, near, launch = make(module)
    launch(near)
    _, made, launch = make(module)
    moved = [key for key in made if axis in axes[key][:-1]]
    spread = made | {key: far(made[key], axes[key].index(axis)) for key in moved}
    launch(spread)
    for key, x in near.items():
        assert untouched(x, spread[key]), key


@pytest.mark.parametrize(("name", "axis"), [(name, axis) for name in CASES for axis in sorted(axes_of(name))], ids=str)
def test_an_axis_beyond_2_to_the_31_elements_is_reached(name: str, axis: str) -> None:
    check(CASES[name][0], (name, axis))


ROW, HEAD = "b = tl.program_id(2).to(tl.int64)", "h = tl.program_id(1).to(tl.int64)"
SLOT = "slot = tl.load(slots + b).to(tl.int64)"
FAULTS = [
    ("scan", "b", ROW, "ssd_scan_kernel"),
    ("scan", "t", "    t = tl.cast(t, tl.int64)", "_token"),
    ("scan", "p", "(row_p.to(tl.int64) * stride.S.p)", "ssd_scan_kernel"),
    ("snapshots", "s", "* stride_places.t).to(tl.int64)", "_walk_tokens"),
    ("gated window", "b", ROW, "ssd_window_kernel"),
    ("window", "s", SLOT, "ssd_window_kernel"),
    ("window", "h", "first = tl.program_id(1).to(tl.int64)", "ssd_window_kernel"),
    ("tree", "t", "t, heads = i.to(tl.int64)", "ssd_window_kernel"),
    ("large tree", "t", "return token.to(tl.int64)", "places"),
    ("chain", "t", "e.to(tl.int64), t.to(tl.int64)", "ssd_window_chain_kernel"),
    ("chain", "p", "((p_0 + p).to(tl.int64) * stride_p)", "store_half"),
    ("replay", "g", "tl.program_id(1).to(tl.int64)", "ssd_replay_short_kernel"),
    ("replay, fp16", "t", "at_t = tl.cast(t, tl.int64)", "_walk_window"),
    ("replay of trees, fp16", "h", HEAD, "_ssd_replay_scan_kernel"),
    ("buffered", "l", "at - CAPACITY, at).to(tl.int64)", "place"),
    ("buffered", "t", "tok, at_new = i.to(tl.int64)", "verify_flush"),
    ("buffered, open", "t", "place(first + e, CAPACITY), i.to(tl.int64)", "verify_open"),
    ("buffered, apart", "g", "% GROUPS).to(tl.int64)", "ssd_buffered_short_kernel"),
    ("buffered, apart, open", "b", "tl.arange(0, BLOCK_B), 0), axis=0).to(tl.int64)", "ssd_buffered_short_kernel"),
    ("buffered, fp16", "h", "h_0 = tl.program_id(1).to(tl.int64)", "ssd_buffered_kernel"),
    ("delta scan", "k", ".to(tl.int64) * ROW", "delta_scan_kernel"),
    ("delta scan", "t", "t = tl.cast(t, tl.int64)", "load_token"),
    ("delta window", "s", SLOT, "delta_window_kernel"),
    ("delta in two launches", "h", HEAD, "_delta_apply_kernel"),
    ("delta in two launches", "b", "b = tl.program_id(1).to(tl.int64)", "_delta_solve_kernel"),
    ("delta, large tree", "t", "every = tl.arange(0, ALL).to(tl.int64)", "_delta_tree_kernel"),
    ("delta, large tree, products", "b", ROW, "delta_tree_products_kernel"),
    ("delta by channel", "k", ".to(tl.int64) * ROW", "kda_scan_kernel"),
    ("delta by channel", "h", "tl.program_id(1).to(tl.int64)", "kda_scan_kernel"),
    ("delta by channel, tree", "t", "n, t = tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_T).to(tl.int64)", "kda_tree_kernel"),
    ("convolution", "c", "c = tl.program_id(0).to(tl.int64)", "_conv_window_kernel"),
    ("convolution, tree", "t", "t = i.to(tl.int64)", "_conv_tree_kernel"),
]


@pytest.mark.parametrize(("name", "axis", "wide", "at"), FAULTS, ids=str)
def test_an_offset_of_32_bits_is_caught(name: str, axis: str, wide: str, at: str) -> None:
    narrow = mutated(CASES[name][0], wide, wide.replace("int64", "int32"), at=at)
    assert caught(narrow, check, [(name, axis)])
