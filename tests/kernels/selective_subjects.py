"""The selective scan's launchers: the values of their calls, what the oracle says of them, and the cases of every law."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ssmspec_kernels.selective import selective_scan, selective_tree
from ssmspec_ref import error_bounds as eb
from ssmspec_ref import tree
from ssmspec_ref.error_bounds.arithmetic import Approx
from ssmspec_ref.selective import SelectiveParams, SelectiveWindow
from tests.kernels import plot
from tests.kernels.laws import Subject, moved
from tests.kernels.plot import Call
from tests.kernels.tensors import draw, integers
from tests.trees import forest, tree_mask


@dataclass(frozen=True)
class Options(plot.Options):
    b: int = 4
    d: int = 11
    n: int = 5
    D: bool = True
    z: bool = True
    bias: bool = True
    softplus: bool = True
    tied: bool = False
    """A is one number for each channel, expanded, as Mamba-2 loads into Mamba-1 kernels."""


def drawn(launcher: str, o: Options, **more: Any) -> Call:
    """Values that the storage types hold; exactly: integers, A = 0, no softplus and no gate."""
    rng = np.random.default_rng(o.seed)
    number = integers if o.exact else draw
    slow, large = (0.02, 30.0) if o.gentle else (1.0, 1.0)
    found: dict[str, Any] = {name: number(rng, o.b, o.t, o.d) for name in ("x", "dt", "z")}
    found |= {name: number(rng, o.b, o.t, o.n) for name in ("B", "C")}
    found |= {"S": large * number(rng, o.b, o.d, o.n), "A": -slow * np.abs(draw(rng, o.d, o.n)) * (not o.exact)}
    found |= {"D": number(rng, o.d) if o.D else None, "dt_bias": draw(rng, o.d) if o.bias and not o.exact else None}
    if not (o.softplus or o.exact):
        found["dt"] = np.abs(found["dt"]) + (4.0 if o.bias else 0.0)
    if not o.z or o.exact:
        found["z"] = None
    call = plot.drawn(launcher, o, found | more.pop("tokens", {}), dt_softplus=o.softplus and not o.exact, **more)
    if o.tied:
        call["A"] = call["A"][:, :1].expand(-1, o.n)
    return call


def window(call: Call) -> SelectiveWindow:
    return SelectiveWindow(**call.tokens("x", "dt", "B", "C", "z"))  # type: ignore[arg-type]


def params(call: Call) -> SelectiveParams:
    return SelectiveParams(**call.weights("A", "D", "dt_bias"), dt_softplus=call["dt_softplus"])


def of_scan(call: Call) -> Iterator[tuple[str, Any, Approx]]:
    y, S = eb.selective.scan(call.state(), window(call), params(call), call.options.contract(), call.live)
    yield "out", call.rows, y
    if call.options.write:
        yield "S", call.named, S


# --- trees ---


def grown(o: Options) -> Call:
    """A tree for each row, poison in its padding."""
    parents = forest(o)
    return drawn("selective_tree", o, tokens={"parents": parents}, dead=parents == tree.PADDING)


def of_tree(call: Call) -> Iterator[tuple[str, Any, Approx]]:
    mask = tree_mask(call["parents"].numpy()[call.rows])
    contract = call.options.contract(order="output_only")
    yield "out", call.rows, eb.selective.tree(call.state(), window(call), mask, params(call), contract)


def tree_bytes(module: Any, call: Call) -> int:
    """The formula's nodes are those that are real; padding gets zeros."""
    o: Any = call.options
    dead = int(call.dead[call.rows].sum())
    nodes = len(call.rows) * o.t - dead
    whole = replace_dead(call)
    return moved(module.traffic_bytes, whole, nodes=nodes) + dead * o.d * call["out"].element_size()


def replace_dead(call: Call) -> Call:
    return replace(call, dead=np.zeros_like(call.dead))


BLOCK = {"block_d": 4}
SCANS = [
    Options(t=1),
    Options(gentle=True, seed=1),
    Options(t=5, live=True, io="bf16", seed=2),
    Options(t=4, d=5, n=16, state="bf16", io="bf16", D=False, seed=3),
    Options(t=2, d=9, n=3, state="fp16", io="fp16", z=False, gentle=True, seed=4),
    Options(t=6, d=3, n=7, write=False, live=True, bias=False, seed=5),
    Options(t=1, b=1, d=17, n=1, D=False, z=False, bias=False, softplus=False, seed=6),
    Options(t=3, d=8, n=4, state="bf16", io="fp32", softplus=False, padding=False, seed=7),
    Options(t=7, b=3, d=2, n=6, exact=True, live=True, seed=8),
    Options(t=32, b=2, d=2, n=3, gentle=True, io="fp16", seed=9),
    Options(t=40, b=3, d=2, n=4, live=True, gentle=True, seed=10),
]
SCANS = [replace(o, how=BLOCK | {"write_state": o.write}) for o in SCANS]
SCAN = Subject(
    "selective_scan",
    selective_scan,
    lambda o: drawn("selective_scan", o),
    of_scan,
    cover=[*SCANS, Options(tied=True, seed=13)],
    moves=SCANS,
    steps=[
        Options(t=5, d=d, n=n, padding=False, gentle=True, seed=11)
        for d, n in ((11, 5), (8, 16), (70, 16), (3, 67), (40, 32), (20, 128))
    ],
    small=Options(),
    once=("S", "x", "dt", "z", "out"),
)
TREES = [
    Options(t=7),
    Options(t=9, gentle=True, seed=1),
    Options(t=5, d=5, n=16, state="bf16", io="bf16", D=False, seed=2),
    Options(t=12, d=6, n=3, state="fp16", io="fp16", z=False, gentle=True, seed=3),
    Options(t=16, d=3, n=4, bias=False, padding=False, seed=4),
    Options(t=1, b=2, d=7, n=2, D=False, z=False, bias=False, softplus=False, seed=5),
    Options(t=21, b=3, d=2, n=3, exact=True, seed=6),
    Options(t=64, b=2, d=2, n=2, io="bf16", gentle=True, seed=7),
]
TREES = [replace(o, how=BLOCK) for o in TREES]
TREE = Subject(
    "selective_tree",
    selective_tree,
    grown,
    of_tree,
    cover=TREES,
    moves=TREES,
    once=("S", "x", "dt", "z", "out"),
    formula=tree_bytes,
    far=[(Options(b=1, d=3, n=2, io="bf16", padding=False), "t")],
)
SUBJECTS = [SCAN, TREE]


def same_trees(parents: list[int], **changes: Any) -> Call:
    """All rows with one tree."""
    call = grown(Options(t=len(parents), padding=False, **changes))
    for x in call.cut(slice(None)).values():
        x.nan_to_num_(0.5)
    call["parents"] = torch.tensor([parents] * 4)
    return call
