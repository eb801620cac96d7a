"""The commit of Kimi Delta Attention beside the oracle: paths, prefixes, drafts, layers, bytes, the bits of single tokens."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ssmspec_kernels.kda import kda_commit as kernel
from ssmspec_kernels.kda.kda_scan import kda_scan
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.delta import DeltaParams, DeltaWindow
from ssmspec_ref.error_bounds.arithmetic import constant, exact
from ssmspec_ref.shapes import Array
from tests.kernels.device import COMPILED
from tests.kernels.mutants import caught, mutated
from tests.kernels.tensors import BYTES, Kept, check_within, contract, doubles, far, strided, watch


@dataclass(frozen=True)
class Options:
    """One case: sizes, storage types, what is on. `drafts` rows of the inputs for each sequence."""

    layers: int = 2
    b: int = 3
    drafts: int = 1
    t: int = 5
    g: int = 2
    h: int = 4
    k: int = 12
    v: int = 18
    state: str = "fp32"
    io: str = "fp32"
    path: bool = False
    raw: bool = True
    lower: float | None = None
    l2_norm: bool = True
    seed: int = 0


class Case:
    """Tensors of one call: the last row is padding, row 0 accepted all, row 1 a part; what is not accepted is NaN."""

    def __init__(self, o: Options) -> None:
        rng, i, m = np.random.default_rng(o.seed), o.layers, o.b * o.drafts
        self.o = o
        self.slots = torch.from_numpy(rng.permutation(o.b + 2)[: o.b])
        self.slots[-1] = -1
        if not (self.slots == 0).any():
            self.slots[0] = 0
        self.rows = torch.from_numpy(np.arange(o.b) * o.drafts + rng.integers(0, o.drafts, o.b))
        count = np.array([o.t, *rng.integers(1, o.t, o.b - 1)])
        self.path = np.full((o.b, o.t), -1)
        for b, n in enumerate(count):
            self.path[b, :n] = np.sort(rng.choice(o.t, n, replace=False)) if o.path else np.arange(n)
        k, v = rng.normal(size=(i, m, o.t, o.g, o.k)), rng.normal(size=(i, m, o.t, o.h, o.v))
        k = k if o.l2_norm else k / np.linalg.norm(k, axis=-1, keepdims=True)
        shape = (i, m, o.t, o.h, o.k)
        g = rng.normal(size=shape) * 2 if o.raw else -rng.uniform(0.05, 1.5, shape)
        beta = rng.normal(size=shape[:-1]) if o.raw else rng.uniform(0.1, 1.0, shape[:-1])
        dead = np.ones((m, o.t), dtype=bool)
        for b, n in enumerate(count[:-1]):
            dead[int(self.rows[b]), self.path[b, :n]] = False
        for a in (k, v, g, beta):
            a[:, dead] = np.nan
        S = np.full((i, o.b + 2, o.h, o.k, o.v), np.nan)
        S[:, self.named] = rng.normal(size=(i, o.b - 1, o.h, o.k, o.v))
        self.S, self.k, self.v = strided(S, o.state), strided(k, o.io), strided(v, o.io)
        self.g, self.beta = strided(g, "fp32"), strided(beta, "fp32")
        self.A = strided(-rng.uniform(0.1, 2.0, (i, o.h)), "fp32") if o.raw else None
        self.dt_bias = strided(rng.normal(size=(i, o.h, o.k)), "fp32") if o.raw else None
        self.accepted = {"path": torch.from_numpy(self.path)} if o.path else {"advanced": torch.from_numpy(count)}

    @property
    def named(self) -> Array:
        """The slots of the rows that are no padding."""
        return self.slots.numpy()[:-1]

    @property
    def tensors(self) -> dict[str, Tensor]:
        made = {name: getattr(self, name) for name in ("S", "k", "v", "g", "beta", "slots")} | self.accepted
        made |= {name: x for name in ("A", "dt_bias") if (x := getattr(self, name)) is not None}
        return made | ({"rows": self.rows} if self.o.drafts > 1 else {})

    def call(self, module: ModuleType, **changes: Any) -> None:
        module.kda_commit(**self.tensors | {"lower_bound": self.o.lower, "l2_norm": self.o.l2_norm} | changes)

    def tokens(self, layer: int, b: int, rules: Any) -> tuple[DeltaWindow, dict[str, Array]]:
        """What row b accepted, and the errors of its gates; q is not read."""
        row, path = int(self.rows[b]), self.path[b][self.path[b] >= 0]
        k, v, g, beta = (doubles(a[layer])[row, path][None] for a in (self.k, self.v, self.g, self.beta))
        if self.A is None or self.dt_bias is None:
            return DeltaWindow(k, k, v, g, beta), {}
        biased = exact(g, rules) + exact(doubles(self.dt_bias[layer]), rules)
        rate, low = exact(doubles(self.A[layer])[:, None], rules), self.o.lower
        made = rate * eb.softplus(biased) if low is None else constant(low, rules) * eb.sigmoid(-rate * biased)
        strength = eb.sigmoid(exact(beta, rules))
        return DeltaWindow(k, k, v, made.value, strength.value), {"g": made.error, "beta": strength.error}


CASES = [
    Options(),
    Options(path=True, drafts=3, io="bf16", lower=-5.0, seed=1),
    Options(layers=3, path=True, state="bf16", io="fp16", t=7, raw=False, seed=2),
    Options(drafts=2, g=1, h=3, k=5, v=33, raw=False, l2_norm=False, seed=3),
    Options(layers=1, b=2, g=4, k=35, v=4, state="fp16", io="bf16", lower=-0.5, t=9, seed=4),
]


def check(module: ModuleType, o: Options) -> None:
    """The states beside the oracle's; nothing else is written, nothing that was not accepted is read."""
    case = Case(o)
    kept, before = Kept(**case.tensors), case.S.clone()
    case.call(module)
    kept.check(S=(slice(None), case.named))
    rules = contract(o.state, o.io)
    for layer in range(o.layers):
        for b, slot in enumerate(case.named):
            window, inexact = case.tokens(layer, b, rules)
            start = doubles(before[layer, slot])[None]
            _, S = eb.delta.scan(start, window, DeltaParams(l2_norm=o.l2_norm), rules, inexact=inexact)
            check_within(doubles(case.S[layer, slot])[None], S)


def check_bits(module: ModuleType) -> None:
    """A commit has the bits of single tokens, in fp32."""
    o = Options(path=True, drafts=2, io="bf16", v=21, lower=-5.0, seed=6)
    case = Case(o)
    assert case.A is not None
    assert case.dt_bias is not None
    wanted = case.S.clone()
    for layer in range(o.layers):
        for b, slot in enumerate(case.named):
            for node in case.path[b][case.path[b] >= 0]:
                token = (a[layer, int(case.rows[b]), node][None, None] for a in (case.k, case.k, case.v, case.g, case.beta))
                gate = {"A": case.A[layer], "dt_bias": case.dt_bias[layer], "lower_bound": o.lower}
                kda_scan(wanted[layer], *token, **gate, slots=torch.tensor([slot]), fused=False)  # type: ignore[arg-type]
    case.call(module)
    assert torch.equal(case.S[:, case.named], wanted[:, case.named])


def check_bytes(module: ModuleType, o: Options) -> None:
    """On a GPU, where no access is seen, there is nothing to assert."""
    if COMPILED:
        return
    case = Case(o)
    apart = [name for name in case.tensors if name not in ("S", "k", "v", "g", "beta")]
    with watch(**case.tensors) as seen:
        case.call(module)
    crossed = seen.distinct_bytes() - sum(seen.loaded(name).distinct for name in apart)
    advanced = [int((path >= 0).sum()) for path in case.path[:-1]]
    sizes = {"state": BYTES[o.state], "io": BYTES[o.io]}
    assert crossed == module.traffic_bytes(advanced, o.layers, o.g, o.h, o.k, o.v, **sizes)
    states = o.layers * (o.b - 1) * o.h * o.k * o.v * BYTES[o.state]
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
    o, states = Options(b=2, t=3, path=True, lower=-5.0), []
    for path in ([0, 1], [7, 0, 1]):
        case = Case(o)
        for x in (case.k, case.v, case.g, case.beta):
            x.copy_(torch.ones_like(x))
        case.call(module, path=torch.tensor([path, path]))
        states.append(case.S[:, case.named])
    assert torch.equal(*states)


@pytest.mark.parametrize("o", CASES, ids=str)
def test_a_commit_lies_within_the_bound_and_touches_nothing_else(o: Options) -> None:
    check(kernel, o)


def test_a_commit_has_the_bits_of_single_tokens() -> None:
    check_bits(kernel)


@pytest.mark.parametrize("o", CASES[:3], ids=str)
def test_a_commit_moves_the_bytes_of_the_formula(o: Options) -> None:
    check_bytes(kernel, o)


def test_a_row_that_accepted_nothing_is_not_touched() -> None:
    check_nothing(kernel)


def test_a_path_counts_the_nodes_of_the_window() -> None:
    check_gaps(kernel)


AXES = {"S": "ishkv", "k": "imtgk", "v": "imthv", "g": "imthk", "beta": "imth"}


@pytest.mark.parametrize("axis", sorted("ishkmtg"))
def test_an_axis_beyond_2_to_the_31_elements_is_reached(axis: str) -> None:
    o = Options(layers=3, k=5, v=4, t=3, h=3, g=3, state="bf16", io="bf16")
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
    ("for n in range(taken):", "for n in range(taken - 1):"),
    ("after = tl.minimum(n + 1, taken - 1)", "after = n"),
    ("slot_of(taken_rows, b)", "b"),
    ("h // HEADS_PER_KEY * stride_k.g", "h * stride_k.g"),
    ("k + layer * stride_k.i", "k + b * stride_k.i"),
    ("S + layer * stride_S.i + slot", "S + slot"),
    ("slot * stride_S.s", "b * stride_S.s"),
    ("A + layer * stride_A.i", "A"),
    ("dt_bias + layer * stride_bias.i", "dt_bias"),
    ("real = (node >= 0) & (node < T)", "real = node >= 0"),
    ("None if path is None else path + b * stride_path.b", "path"),
    ("BOUNDED=lower_bound is not None", "BOUNDED=False"),
    ('unfused_tile(axes["k"], axes["v"], H200["kda_commit"]["block_v"])', "(2, 8, 1)"),
    ("return layers * (moved", "return (moved"),
]


@pytest.mark.parametrize(("old", "new"), FAULTS)
def test_planted_faults_are_caught(old: str, new: str) -> None:
    checks: list[Any] = [lambda m, o=o: check(m, o) for o in CASES]
    checks += [check_bits, lambda m: check_bytes(m, CASES[2]), check_nothing, check_gaps]
    assert caught(mutated(kernel, old, new), lambda m, judged: judged(m), checks)
