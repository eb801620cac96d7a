"""The short convolution's ring: windows behind it and its flush; oracle, bytes, bits, planted faults."""

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ssmspec_kernels.shared.cursors import commit_window
from ssmspec_kernels.shortconv import shortconv_buffered, shortconv_flush, shortconv_scan
from ssmspec_kernels.shortconv.shortconv_ring import Ring
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.shapes import Array
from ssmspec_ref.shortconv import ShortConvWindow
from tests.kernels.conv_cases import Options, case, short
from tests.kernels.covers import planted
from tests.kernels.device import COMPILED
from tests.kernels.mutants import caught, mutated
from tests.kernels.tensors import Kept, check_within, contract, doubles, strided, watch

RINGS = [
    short(t=3),
    short(t=4, w=2, io="bf16", index=torch.int64, seed=1),
    short(t=3, c=5, w=8, state="bf16", io="bf16", live=True, seed=2),
    short(t=3, c=9, w=4, state="fp16", io="fp16", live=True, padding=False, seed=3),
]
CAPACITY = 9
"""Three windows of three tokens: a row that holds four is due."""
PARAMETERS = ("weight", "bias", "slots", "lengths", "origin", "held")


def check_moved(seen: Any, expected: int) -> None:
    """The bytes of the formula, each address once, and no access outside; nothing is recorded on a GPU."""
    if not COMPILED:
        assert seen.outside == seen.races == []
        assert seen.distinct_bytes() - sum(seen.loaded(name).distinct for name in PARAMETERS) == expected


class Beside:
    """One row beside the kernels: its checkpoint, and the tokens held since."""

    def __init__(self, o: Options, S: Array, params: Any) -> None:
        self.S, self.params, self.rules, self.held = S, params, contract(o.state, o.io), np.zeros((2, 1, 0, o.c))

    def read(self, B: Array, C: Array, x: Array) -> Any:
        """Outputs of further tokens (t, d) with their bounds, and the columns behind them."""
        (past_B, past_x), new = self.held, len(x)
        run = (np.concatenate([past, a[None]], axis=1) for past, a in ((past_B, B), (past_x, C), (past_x, x)))
        y, S = eb.shortconv.scan(self.S, ShortConvWindow(*run), self.params, self.rules)
        return y[:, y.value.shape[1] - new :], S

    def folded(self) -> Any:
        """The checkpoint with all that is held."""
        B, x = self.held
        return eb.shortconv.scan(self.S, ShortConvWindow(B, B, x), self.params, self.rules)[1]

    def accept(self, B: Array, x: Array) -> None:
        self.held = np.concatenate([self.held, np.stack([B, x])[:, None]], axis=2)

    @property
    def count(self) -> int:
        return self.held.shape[2]


def check_rings(module: ModuleType, o: Options, flush: ModuleType = shortconv_flush) -> None:
    """Eight windows, each accepted in part, then a flush: outputs and checkpoints beside the oracle; bystanders; bytes."""
    rng, made = np.random.default_rng(o.seed), case(o)
    fixed = {name: x for name, x in made.tensors.items() if name not in ("live", *o.inputs)}
    S, own, state, io = made.state, made.named, o.bytes["state"], o.bytes["io"]
    u = strided(np.full((len(S), CAPACITY, o.c), np.nan), "fp32", gap=6)
    ring = Ring(u, torch.from_numpy(rng.integers(0, CAPACITY, len(S))).int(), torch.zeros(len(S), dtype=torch.int32))
    oracles = [Beside(o, made.M0[[i]], made.params) for i in range(len(made.rows))]
    for turn in range(8):
        lengths = rng.integers(0, o.t + 1, o.b) if o.live else np.full(o.b, o.t)
        window = case(replace(o, live=False, seed=10 * o.seed + turn))
        tokens = {name: window.tensors[name] for name in o.inputs}
        for tensor in tokens.values():
            tensor[torch.from_numpy(np.arange(o.t) >= lengths[:, None])] = float("nan")
        given = tokens | fixed | {"lengths": torch.from_numpy(lengths)}
        touched = given | {"ring.u": u, "origin": ring.origin, "held": ring.held}
        kept, before, expected = Kept(**touched), doubles(S[own]), 0
        with watch(**touched) as seen:
            module.shortconv_buffered(**given, ring=ring, window=o.t, block_d=4)
        kept.check(out=torch.from_numpy(made.rows), S=own, **{"ring.u": own})
        taken = np.array([int(rng.integers(0, n + 1)) for n in lengths])
        for i, (row, oracle) in enumerate(zip(made.rows, oracles, strict=True)):
            real, found = int(lengths[row]), doubles(S[own[[i]]])
            B, C, x = (doubles(tokens[name])[row, :real] for name in "BCx")
            if real:
                check_within(made.outputs[[i], :real], oracle.read(B, C, x)[0])
            assert not made.outputs[i, real:].any()
            sizes = {"capacity": CAPACITY, "window": o.t, "state": state, "io": io}
            expected += module.traffic_bytes([oracle.count], real, o.c, o.w, **sizes) + (o.t - real) * o.c * io
            if oracle.count + 2 * o.t <= CAPACITY or not real:
                assert np.array_equal(found[0], before[i])
                expected -= (o.w - 1) * o.c * state if oracle.count + 2 * o.t > CAPACITY else 0
            else:
                check_within(found, oracle.folded())
                oracle.S, oracle.held = found, oracle.held[:, :, :0]
            oracle.accept(B[: taken[row]], x[: taken[row]])
        check_moved(seen, expected)
        how: dict[str, Any] = {"slots": given["slots"], "lengths": given["lengths"], "capacity": CAPACITY, "window": o.t}
        commit_window(ring.origin, ring.held, torch.from_numpy(taken), **how)
    check_flush(flush, o, S, made.tensors["slots"], ring, own, oracles)


def check_flush(
    module: ModuleType, o: Options, S: Tensor, slots: Tensor, ring: Ring, own: Tensor, oracles: list[Beside]
) -> None:
    touched, before = {"S": S, "ring.u": ring.u, "origin": ring.origin, "held": ring.held, "slots": slots}, doubles(S[own])
    kept = Kept(**touched)
    with watch(**touched) as seen:
        module.shortconv_flush(S, ring, o.b, slots=slots, block_d=4)
    kept.check(S=own)
    for i, oracle in enumerate(oracles):
        if oracle.count:
            check_within(doubles(S[own[[i]]]), oracle.folded())
        else:
            assert np.array_equal(doubles(S[own[i]]), before[i])
    check_moved(seen, module.traffic_bytes([oracle.count for oracle in oracles], o.c, o.w, state=o.bytes["state"]))


@pytest.mark.parametrize("o", RINGS, ids=str)
def test_windows_behind_a_ring_equal_the_oracle_and_touch_nothing_else(o: Options) -> None:
    check_rings(shortconv_buffered, o)


def test_a_window_behind_an_empty_ring_has_the_bits_of_a_scan() -> None:
    made = case(short(t=4, padding=False))
    empty, u = torch.zeros(len(made.state), dtype=torch.int32), torch.full((len(made.state), CAPACITY, 11), float("nan"))
    y = made.call(shortconv_scan, out=None, write_state=False)
    assert torch.equal(made.call(shortconv_buffered, out=None, ring=Ring(u, empty, empty.clone())), y)


MUTANTS = {
    shortconv_buffered: [
        ("_shortconv_buffered_kernel", "(length > 0) & is_due", "(length >= 0) & is_due"),
        ("_shortconv_buffered_kernel", "first + count + t", "first + t"),
        ("_shortconv_buffered_kernel", "mask=inside & real)  # (3)", "mask=inside)  # (3)"),
        ("_shortconv_buffered_kernel", "real = tl.cast(t, tl.int64), t < length", "real = tl.cast(t, tl.int64), t <= length"),
        ("load_held", "first + i - KEPT", "first + i - KEPT + 1"),
        ("load_held", "i = count + k", "i = count + k + 1"),
        ("is_due", "held + 2 * WINDOW > CAPACITY", "held + 2 * WINDOW >= CAPACITY"),
        ("read_token", "y_t = C_t * filtered(", "y_t = filtered("),
    ],
    shortconv_flush: [
        ("_shortconv_flush_kernel", "(count > 0)", "(count > 1)"),
        ("_shortconv_flush_kernel", "slot * stride_u_s", "(slot + 1) * stride_u_s"),
        ("load_held", "mask=inside & (i >= KEPT)", "mask=inside & (i > KEPT)"),
    ],
}


@pytest.mark.parametrize(("module", "at", "old", "new"), planted(MUTANTS))
def test_planted_faults_are_caught(module: ModuleType, at: str, old: str, new: str) -> None:
    mutant = mutated(module, old, new, at=at)
    ring = (shortconv_buffered, mutant) if module is shortconv_flush else (mutant, shortconv_flush)
    assert caught(mutant, lambda _, o: check_rings(ring[0], o, ring[1]), RINGS)
