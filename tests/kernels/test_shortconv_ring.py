"""The short convolution's ring: windows behind it and its flush; oracle, bytes, bits, planted faults."""

from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch

from ssmspec_kernels.shared.cursors import commit_window
from ssmspec_kernels.shortconv import shortconv_buffered, shortconv_flush, shortconv_scan
from ssmspec_kernels.shortconv.shortconv_ring import Ring
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.shapes import Array
from ssmspec_ref.shortconv import ShortConvWindow
from tests.kernels import conv_plot as conv
from tests.kernels.conv_plot import Options, drawn, short
from tests.kernels.device import COMPILED
from tests.kernels.laws import (  # noqa: F401
    Subject,
    bits,
    pytest_generate_tests,
    same,
    test_planted_fault_is_caught,
    test_what_a_launcher_alone_is_held_to,
)
from tests.kernels.plot import Call
from tests.kernels.tensors import Kept, check_within, doubles, strided, watch

RINGS = [
    short(t=3),
    short(t=4, w=2, io="bf16", seed=1),
    short(t=3, c=5, w=8, state="bf16", io="bf16", live=True, seed=2),
    short(t=3, c=9, w=4, state="fp16", io="fp16", live=True, padding=False, seed=3),
]
CAPACITY = 9
"""Three windows of three tokens: a row that holds four is due."""
PARAMETERS = ("weight", "bias", "slots", "lengths", "ring.origin", "ring.held")


def check_moved(seen: Any, expected: int) -> None:
    """The bytes of the formula, each address once, and no access outside; nothing is recorded on a GPU."""
    if not COMPILED:
        assert seen.outside == seen.races == []
        assert seen.distinct_bytes() - sum(seen.loaded(name).distinct for name in PARAMETERS) == expected


class Beside:
    """One row beside the kernels: its checkpoint, and the tokens held since."""

    def __init__(self, o: Options, S: Array, params: Any) -> None:
        self.S, self.params, self.rules, self.held = S, params, o.contract(), np.zeros((2, 1, 0, o.c))

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


def ring_of(o: Options) -> Ring:
    """An empty ring, poison in every entry, each row's origin somewhere else."""
    s = o.b + o.spare
    origin = torch.from_numpy(np.random.default_rng(o.seed).integers(0, CAPACITY, s)).int()
    return Ring(strided(np.full((s, CAPACITY, o.c), np.nan), "fp32", gap=6), origin, torch.zeros(s, dtype=torch.int32))


def check_rings(module: ModuleType, o: Options, flush: ModuleType = shortconv_flush) -> None:
    """Eight windows, each accepted in part, then a flush: outputs and checkpoints beside the oracle; bystanders; bytes."""
    rng, call = np.random.default_rng(o.seed), drawn("shortconv_buffered", replace(o, live=False), block_d=4, window=o.t)
    call["ring"] = ring = ring_of(o)
    own, sizes = call.named, {"capacity": CAPACITY, "window": o.t, "state": call["S"].element_size()}
    io = call["x"].element_size()
    oracles = [Beside(o, first[None], conv.params(call)) for first in call.state()]
    for turn in range(8):
        lengths = rng.integers(0, o.t + 1, o.b) if o.live else np.full(o.b, o.t)
        window = drawn("shortconv_buffered", replace(o, live=False, seed=10 * o.seed + turn))
        for name in "BCx":
            call[name].copy_(window[name])[torch.from_numpy(np.arange(o.t) >= lengths[:, None])] = float("nan")
        call["lengths"] = torch.from_numpy(lengths)
        kept, before, expected = Kept(**call.tensors), call.state(), 0
        with watch(**call.tensors) as seen:
            call.run(module)
        kept.check(out=call.rows, S=own, **{"ring.u": own})
        taken = np.array([int(rng.integers(0, n + 1)) for n in lengths])
        for i, (row, oracle) in enumerate(zip(call.rows, oracles, strict=True)):
            real, found = int(lengths[row]), call.state()[[i]]
            y, (B, C, x) = doubles(call["out"])[[row]], (doubles(call[name])[row, :real] for name in "BCx")
            if real:
                check_within(y[:, :real], oracle.read(B, C, x)[0])
            assert not y[:, real:].any()
            expected += module.traffic_bytes([oracle.count], real, o.c, o.w, io=io, **sizes) + (o.t - real) * o.c * io
            if oracle.count + 2 * o.t <= CAPACITY or not real:
                assert np.array_equal(found[0], before[i])
                expected -= (o.w - 1) * o.c * sizes["state"] if oracle.count + 2 * o.t > CAPACITY else 0
            else:
                check_within(found, oracle.folded())
                oracle.S, oracle.held = found, oracle.held[:, :, :0]
            oracle.accept(B[: taken[row]], x[: taken[row]])
        check_moved(seen, expected)
        how: dict[str, Any] = {"slots": call["slots"], "lengths": call["lengths"], "capacity": CAPACITY, "window": o.t}
        commit_window(ring.origin, ring.held, torch.from_numpy(taken), **how)
    check_flush(flush, call, oracles)


def check_flush(module: ModuleType, call: Call, oracles: list[Beside]) -> None:
    """The same rows without a window."""
    o: Any = call.options
    touched, before = (
        {name: call.tensors[name] for name in ("S", "slots", "ring.u", "ring.origin", "ring.held")},
        call.state(),
    )
    kept = Kept(**touched)
    with watch(**touched) as seen:
        module.shortconv_flush(call["S"], call["ring"], o.b, slots=call["slots"], block_d=4)
    kept.check(S=call.named)
    for i, oracle in enumerate(oracles):
        if oracle.count:
            check_within(call.state()[[i]], oracle.folded())
        else:
            assert np.array_equal(call.state()[i], before[i])
    held = [oracle.count for oracle in oracles]
    check_moved(seen, module.traffic_bytes(held, o.c, o.w, state=call["S"].element_size()))


def check_empty(module: ModuleType) -> None:
    """A window behind an empty ring has the bits of a scan."""
    o = short(t=4, padding=False, write=False)
    call, scan = drawn("shortconv_buffered", o), drawn("shortconv_scan", o)
    call["ring"] = ring_of(o)
    call.run(module)
    scan.run(shortconv_scan)
    assert same(bits(call, "out"), bits(scan, "out"))


BUFFERED = Subject(
    "shortconv_buffered",
    shortconv_buffered,
    lambda o: drawn("shortconv_buffered", o),
    lambda call: [],
    cover=[],
    special=[*(partial(check_rings, o=o) for o in RINGS), check_empty],
)
FLUSH = replace(
    BUFFERED,
    name="shortconv_flush",
    module=shortconv_flush,
    special=[partial(check_rings, shortconv_buffered, o) for o in RINGS],
)
SUBJECTS = [BUFFERED, FLUSH]
FAULTS: dict[str, list[tuple[str, ...]]] = {
    "shortconv_buffered": [
        ("(length > 0) & is_due", "(length >= 0) & is_due", "_shortconv_buffered_kernel"),
        ("first + count + t", "first + t", "_shortconv_buffered_kernel"),
        ("mask=inside & real)  # (3)", "mask=inside)  # (3)", "_shortconv_buffered_kernel"),
        ("real = tl.cast(t, tl.int64), t < length", "real = tl.cast(t, tl.int64), t <= length", "_shortconv_buffered_kernel"),
        ("first + i - KEPT", "first + i - KEPT + 1", "load_held"),
        ("i = count + k", "i = count + k + 1", "load_held"),
        ("held + 2 * WINDOW > CAPACITY", "held + 2 * WINDOW >= CAPACITY", "is_due"),
        ("y_t = C_t * filtered(", "y_t = filtered(", "read_token"),
    ],
    "shortconv_flush": [
        ("(count > 0)", "(count > 1)", "_shortconv_flush_kernel"),
        ("slot * stride_u_s", "(slot + 1) * stride_u_s", "_shortconv_flush_kernel"),
        ("mask=inside & (i >= KEPT)", "mask=inside & (i > KEPT)", "load_held"),
    ],
}
