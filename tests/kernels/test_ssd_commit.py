"""The commit of SSD states beside the oracle: paths and prefixes, drafts, layers, bytes, the bits of single tokens."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ssmspec_kernels.ssd import ssd_commit as kernel
from ssmspec_kernels.ssd.ssd_scan import ssd_scan
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.shapes import Array
from ssmspec_ref.ssd import SSDParams, SSDWindow
from tests.kernels.device import COMPILED
from tests.kernels.mutants import caught, mutated
from tests.kernels.tensors import BYTES, Kept, check_within, contract, doubles, far, strided, watch


@dataclass(frozen=True)
class Options:
    """One case: sizes, storage types, what is on. `e` heads of x, `drafts` rows of the inputs for each sequence."""

    layers: int = 2
    b: int = 3
    drafts: int = 1
    t: int = 5
    e: int = 4
    h: int = 4
    g: int = 2
    p: int = 18
    n: int = 21
    state: str = "fp32"
    io: str = "fp32"
    path: bool = False
    bias: bool = True
    softplus: bool = True
    limit: tuple[float, float] = (0.0, float("inf"))
    seed: int = 0


class Case:
    """Tensors of one call: the last row is padding, row 0 accepted all, row 1 a part; what is not accepted is NaN."""

    def __init__(self, o: Options) -> None:
        rng, i, m = np.random.default_rng(o.seed), o.layers, o.b * o.drafts
        self.o = o
        self.slots = torch.from_numpy(rng.permutation(o.b + 2)[: o.b])
        self.slots[-1] = -1
        self.rows = torch.from_numpy(np.arange(o.b) * o.drafts + rng.integers(0, o.drafts, o.b))
        count = np.array([o.t, *rng.integers(1, o.t, o.b - 1)])
        self.path = np.full((o.b, o.t), -1)
        for b, k in enumerate(count):
            self.path[b, :k] = np.sort(rng.choice(o.t, k, replace=False)) if o.path else np.arange(k)
        x, B = rng.normal(size=(i, m, o.t, o.e, o.p)), rng.normal(size=(i, m, o.t, o.g, o.n))
        dt = rng.normal(size=(i, m, o.t, o.h)) if o.softplus else rng.uniform(0.02, 1.0, (i, m, o.t, o.h))
        dead = np.ones((m, o.t), dtype=bool)
        for b, k in enumerate(count[:-1]):
            dead[int(self.rows[b]), self.path[b, :k]] = False
        for a in (x, dt, B):
            a[:, dead] = np.nan
        S = np.full((i, o.b + 2, o.h, o.p, o.n), np.nan)
        S[:, self.named] = rng.normal(size=(i, o.b - 1, o.h, o.p, o.n))
        self.S, self.x, self.dt, self.B = strided(S, o.state), strided(x, o.io), strided(dt, o.io), strided(B, o.io)
        self.A = strided(-rng.uniform(0.1, 2.0, (i, o.h)), "fp32")
        self.bias = strided(rng.normal(size=(i, o.h)) - 1.0, "fp32") if o.bias else None
        self.accepted = {"path": torch.from_numpy(self.path)} if o.path else {"advanced": torch.from_numpy(count)}

    @property
    def named(self) -> Array:
        """The slots of the rows that are no padding."""
        return self.slots.numpy()[:-1]

    @property
    def tensors(self) -> dict[str, Tensor]:
        made = {name: getattr(self, name) for name in ("S", "x", "dt", "A", "B", "slots")} | self.accepted
        made |= {"dt_bias": self.bias} if self.bias is not None else {}
        return made | ({"rows": self.rows} if self.o.drafts > 1 else {})

    def call(self, module: ModuleType, **changes: Any) -> None:
        module.ssd_commit(**self.tensors | {"dt_softplus": self.o.softplus, "dt_limit": self.o.limit} | changes)

    def tokens(self, layer: int, b: int) -> SSDWindow:
        """What row b accepted, every head of x with its own; C is not read."""
        row, path = int(self.rows[b]), self.path[b][self.path[b] >= 0]
        x, dt, B = (doubles(a[layer])[row, path][None] for a in (self.x, self.dt, self.B))
        return SSDWindow(np.repeat(x, self.o.h // self.o.e, axis=2), dt, B, B)

    def params(self, layer: int) -> SSDParams:
        bias = None if self.bias is None else doubles(self.bias[layer])
        return SSDParams(doubles(self.A[layer]), dt_bias=bias, dt_softplus=self.o.softplus, dt_limit=self.o.limit)


CASES = [
    Options(),
    Options(path=True, drafts=3, io="bf16", seed=1),
    Options(layers=3, path=True, e=2, state="bf16", io="fp16", t=7, limit=(0.05, 0.8), seed=2),
    Options(drafts=2, e=1, g=1, h=3, p=5, n=33, bias=False, softplus=False, seed=3),
    Options(layers=1, b=2, g=4, p=35, n=4, state="fp16", io="bf16", t=17, seed=4),
    Options(layers=1, b=2, e=2, h=2, g=1, p=5, n=4, t=9, path=True, seed=5),  # a path with nodes beyond the number of states
    Options(layers=1, b=2, p=16, n=6, seed=6),  # channels that fill their tiles
]


def check(module: ModuleType, o: Options, **tiles: int) -> None:
    """The states beside the oracle's; nothing else is written, nothing that was not accepted is read."""
    case = Case(o)
    kept, before = Kept(**case.tensors), case.S.clone()
    case.call(module, **tiles)
    kept.check(S=(slice(None), case.named))
    for layer in range(o.layers):
        for b, slot in enumerate(case.named):
            start, rules = doubles(before[layer, slot])[None], contract(o.state, o.io, order="output_only")
            _, S = eb.ssd.scan(start, case.tokens(layer, b), case.params(layer), rules)
            check_within(doubles(case.S[layer, slot])[None], S)


def check_bits(module: ModuleType) -> None:
    """A commit has the bits of single tokens, in fp32."""
    o = Options(path=True, drafts=2, io="bf16", p=9, seed=6)
    case = Case(o)
    wanted = case.S.clone()
    for layer in range(o.layers):
        for b, slot in enumerate(case.named):
            for node in case.path[b][case.path[b] >= 0]:
                x, dt, B = (a[layer, int(case.rows[b]), node][None, None] for a in (case.x, case.dt, case.B))
                bias = None if case.bias is None else case.bias[layer]
                ssd_scan(wanted[layer], x, dt, case.A[layer], B, B, dt_bias=bias, slots=torch.tensor([slot]), fused=False)
    case.call(module)
    assert torch.equal(case.S[:, case.named], wanted[:, case.named])


def check_bytes(module: ModuleType, o: Options, **tiles: int) -> None:
    """On a GPU, where no access is seen, there is nothing to assert."""
    if COMPILED:
        return
    case = Case(o)
    apart = [name for name in case.tensors if name not in ("S", "x", "dt", "B")]
    with watch(**case.tensors) as seen:
        case.call(module, **tiles)
    crossed = seen.distinct_bytes() - sum(seen.loaded(name).distinct for name in apart)
    advanced = [int((path >= 0).sum()) for path in case.path[:-1]]
    sizes = {"state": BYTES[o.state], "io": BYTES[o.io]}
    assert crossed == module.traffic_bytes(advanced, o.layers, o.e, o.h, o.p, o.n, o.g, **sizes)
    states = o.layers * (o.b - 1) * o.h * o.p * o.n * BYTES[o.state]
    assert seen.loaded("S").requested == seen.stored("S").requested == states
    assert seen.outside == seen.races == []


def check_nothing(module: ModuleType) -> None:
    """Rows that accepted nothing, by either way to say so: their states are neither read nor written."""
    for o in (Options(), Options(path=True)):
        case = Case(o)
        case.accepted = {name: torch.full_like(x, -1 if name == "path" else 0) for name, x in case.accepted.items()}
        kept = Kept(**case.tensors)
        with watch(**case.tensors) as seen:
            case.call(module)
        kept.check()
        assert seen.loaded("S").requested == seen.stored("S").requested == 0


def check_gaps(module: ModuleType) -> None:
    """A node outside the window neither decays the state nor adds to it, wherever it stands in a path."""
    o, states = Options(b=2, t=3, path=True), []
    for path in ([0, 1], [7, 0, 1]):
        case = Case(o)
        for x in (case.x, case.dt, case.B):
            x.copy_(torch.ones_like(x))
        case.call(module, path=torch.tensor([path, path]))
        states.append(case.S[:, case.named])
    assert torch.equal(*states)


@pytest.mark.parametrize("o", CASES, ids=str)
def test_a_commit_lies_within_the_bound_and_touches_nothing_else(o: Options) -> None:
    check(kernel, o)


@pytest.mark.parametrize("tiles", [(8, 1), (32, 2), (64, 4)], ids=str)
def test_every_tile_lies_within_the_bound(tiles: tuple[int, int]) -> None:
    check(kernel, CASES[1], block_p=tiles[0], num_warps=tiles[1])


def test_a_commit_has_the_bits_of_single_tokens() -> None:
    check_bits(kernel)


@pytest.mark.parametrize("o", CASES[:3], ids=str)
def test_a_commit_moves_the_bytes_of_the_formula(o: Options) -> None:
    check_bytes(kernel, o)
    check_bytes(kernel, o, block_p=8)


def test_a_row_that_accepted_nothing_is_not_touched() -> None:
    check_nothing(kernel)


def test_a_path_counts_the_nodes_of_the_window() -> None:
    check_gaps(kernel)


AXES = {"S": "ishpn", "x": "imtep", "dt": "imth", "B": "imtgn"}


@pytest.mark.parametrize("axis", sorted("ishpmteg"))
def test_an_axis_beyond_2_to_the_31_elements_is_reached(axis: str) -> None:
    o = Options(layers=3, p=5, n=4, t=3, e=3, h=3, g=3, state="bf16", io="bf16")
    near, case = Case(o), Case(o)
    for made in (near, case):
        made.slots = torch.tensor([4, 0, 2], dtype=torch.int32)
        for name in AXES:  # every row counts, and the last slot
            getattr(made, name).nan_to_num_(0.5)
    near.call(kernel)
    for name, axes in AXES.items():
        if axis in axes[:-1]:
            setattr(case, name, far(getattr(case, name), axes.index(axis)))
    case.call(kernel)
    assert torch.equal(case.S, near.S)


FAULTS = [
    ("(slot >= 0) & (taken > 0)", "(slot > 0) & (taken > 0)"),
    ("(slot >= 0) & (taken > 0)", "slot >= 0"),
    ("for j in range(taken):", "for j in range(taken - 1):"),
    ("after = tl.minimum(j + 1, taken - 1)", "after = j"),
    ("live = k < taken", "live = k < taken - 1"),
    ("step_size(raw, live, bias,", "step_size(raw, live, 0.0,"),
    ("tl.fma(state, element(decays, k, j),", "tl.fma(state, 1.0,"),
    ("row * stride_x.m + h // HEADS_PER_X * stride_x.e", "b * stride_x.m + h // HEADS_PER_X * stride_x.e"),
    ("h // HEADS_PER_X * stride_x.e", "h * stride_x.e"),
    ("h // HEADS_PER_GROUP * stride_B.g", "h * stride_B.g"),
    ("B + i * stride_B.i", "B + b * stride_B.i"),
    ("i * stride_S.i + slot", "slot"),
    ("slot * stride_S.s", "b * stride_S.s"),
    ("A + i * stride_A.i", "A"),
    ("dt_bias + i * stride_bias.i", "dt_bias"),
    ("live &= (node >= 0) & (node < T)", "live &= node >= 0"),
    ("there = (node >= 0) & (node < T)", "there = node >= 0"),
    ("((p < P) |", "((p < P - 1) |"),
    ("(P + BLOCK_P - 1) // BLOCK_P", "(P + BLOCK_P + 1) // BLOCK_P"),
    (
        "after, stride_path.k, stride_x.t, stride_B.t, in_p, in_n, T",
        "after, stride_path.k, stride_x.t, stride_B.t, in_p, in_n, N",
    ),
    ("None if path is None else path + b * stride_path.b", "path"),
    ("return layers * (moved", "return (moved"),
]


@pytest.mark.parametrize(("old", "new"), FAULTS)
def test_planted_faults_are_caught(old: str, new: str) -> None:
    checks: list[Any] = [lambda m, o=o: check(m, o) for o in CASES]
    checks += [check_bits, lambda m: check_bytes(m, CASES[2]), check_nothing, check_gaps]
    assert caught(mutated(kernel, old, new), lambda m, judged: judged(m), checks)
