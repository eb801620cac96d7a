"""The commit of Kimi Delta Attention beside the oracle: paths, prefixes, drafts, layers, bytes, the bits of single tokens."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from ssmspec_kernels.kda import kda_commit as kernel
from ssmspec_kernels.kda.kda_scan import kda_scan
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.delta import DeltaParams, DeltaWindow
from ssmspec_ref.error_bounds.arithmetic import Approx, constant, exact
from ssmspec_ref.shapes import Array
from tests.kernels import commit_cases as commits
from tests.kernels.mutants import caught, mutated
from tests.kernels.tensors import contract, doubles, strided


@dataclass(frozen=True)
class Options(commits.Options):
    """One case of a commit, with the sizes of Kimi Delta Attention."""

    g: int = 2
    h: int = 4
    k: int = 12
    v: int = 18
    raw: bool = True
    lower: float | None = None
    l2_norm: bool = True

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.g, self.h, self.k, self.v


class Case(commits.Case):
    """One call of the launcher."""

    def __init__(self, o: Options) -> None:
        rng, shape = np.random.default_rng(o.seed), (o.layers, o.b * o.drafts, o.t)
        k, v = rng.normal(size=(*shape, o.g, o.k)), rng.normal(size=(*shape, o.h, o.v))
        k = k if o.l2_norm else k / np.linalg.norm(k, axis=-1, keepdims=True)
        g = rng.normal(size=(*shape, o.h, o.k)) * 2 if o.raw else -rng.uniform(0.05, 1.5, (*shape, o.h, o.k))
        beta = rng.normal(size=(*shape, o.h)) if o.raw else rng.uniform(0.1, 1.0, (*shape, o.h))
        gates = {"g": "fp32", "beta": "fp32"}
        super().__init__(o, (o.h, o.k, o.v), {"k": k, "v": v, "g": g, "beta": beta}, gates)
        self.extra = {"lower_bound": o.lower, "l2_norm": o.l2_norm}
        if o.raw:
            self.extra["A"] = strided(-rng.uniform(0.1, 2.0, (o.layers, o.h)), "fp32")
            self.extra["dt_bias"] = strided(rng.normal(size=(o.layers, o.h, o.k)), "fp32")

    def after(self, layer: int, b: int, start: Array) -> Approx:
        o, rules, errors = self.o, contract(self.o.state, self.o.io), dict[str, Array]()
        k, v, g, beta = (doubles(x[layer])[int(self.rows[b]), self.nodes(b)][None] for x in self.inputs.values())
        if o.raw:
            biased = exact(g, rules) + exact(doubles(self.extra["dt_bias"][layer]), rules)
            rate = exact(doubles(self.extra["A"][layer])[:, None], rules)
            made = rate * eb.softplus(biased)
            made = made if o.lower is None else constant(o.lower, rules) * eb.sigmoid(-rate * biased)
            strength = eb.sigmoid(exact(beta, rules))
            g, beta, errors = made.value, strength.value, {"g": made.error, "beta": strength.error}
        window = DeltaWindow(k, k, v, g, beta)  # q is not read
        return eb.delta.scan(start, window, DeltaParams(l2_norm=o.l2_norm), rules, inexact=errors)[1]


CASES = [
    Options(),
    Options(path=True, drafts=3, io="bf16", lower=-5.0, seed=1),
    Options(layers=3, path=True, state="bf16", io="fp16", t=7, raw=False, seed=2),
    Options(drafts=2, g=1, h=3, k=5, v=33, raw=False, l2_norm=False, seed=3),
    Options(layers=1, b=2, g=4, k=35, v=4, state="fp16", io="bf16", lower=-0.5, t=9, seed=4),
]


def check(module: ModuleType, o: Options) -> None:
    commits.check(module.kda_commit, Case(o))


def check_bits(module: ModuleType) -> None:
    """A commit has the bits of single tokens, in fp32."""
    o = Options(path=True, drafts=2, io="bf16", v=21, lower=-5.0, seed=6)
    case = Case(o)
    wanted = case.S.clone()
    for layer in range(o.layers):
        gate: dict[str, Any] = {"A": case.extra["A"][layer], "dt_bias": case.extra["dt_bias"][layer], "lower_bound": o.lower}
        for b, slot in enumerate(case.named):
            for node in case.nodes(b):
                k, *rest = (x[layer, int(case.rows[b]), node][None, None] for x in case.inputs.values())
                kda_scan(wanted[layer], k, k, *rest, **gate, slots=torch.tensor([slot]), fused=False)
    case.call(module.kda_commit)
    assert torch.equal(case.S[:, case.named], wanted[:, case.named])


def check_bytes(module: ModuleType, o: Options) -> None:
    commits.check_bytes(module.kda_commit, module.traffic_bytes, Case(o), *o.sizes)


def check_nothing(module: ModuleType) -> None:
    commits.check_nothing(module.kda_commit, Case(Options()), Case(Options(path=True)))


def check_gaps(module: ModuleType) -> None:
    """A node outside the window neither decays the state nor adds to it, wherever it stands in a path."""
    states = []
    for path in ([0, 1], [7, 0, 1]):
        case = Case(Options(b=2, t=3, path=True, lower=-5.0))
        for x in case.inputs.values():
            x.copy_(torch.ones_like(x))
        case.call(module.kda_commit, path=torch.tensor([path, path]))
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


@pytest.mark.parametrize("axis", sorted("ishkmtg"))
def test_an_axis_beyond_2_to_the_31_elements_is_reached(axis: str) -> None:
    o = Options(layers=3, k=5, v=4, t=3, h=3, g=3, state="bf16", io="bf16")
    commits.check_far(kernel.kda_commit, Case(o), Case(o), axis)


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
