"""SSD's buffered launchers: bytes, windows in a row, strong decays, the last bits, the flush."""

from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import torch

from ssmspec_kernels.shared import cursors
from ssmspec_kernels.ssd.ring import ssd_buffered, ssd_buffered_step
from tests.kernels import ssd_plot as ssd
from tests.kernels.laws import Subject, bits, check_bytes, same
from tests.kernels.ssd_plot import Options
from tests.kernels.ssd_rings import Held, assert_close_to, check_run, held, ring_bytes, ring_of, strong
from tests.kernels.tensors import Kept, check_within, doubles

WINDOWS = [
    (Options(z=True, D="channel", poison=7.0), 8),
    (Options(io="bf16", t=4, g=1, p=35, limit=(0.05, 0.8), seed=1), 11),
    (Options(io="bf16", t=2, gentle=True, h=2, p=9, n=18, z=True, seed=2), 5),
    (Options(state="bf16", io="fp16", t=1, g=1, h=3, D="", seed=4, poison=-2.0), 2),
    (Options(b=2, state="fp16", io="bf16", t=5, h=2, p=5, softplus=False, bias=False, gentle=True, seed=5), 39),
]
STEPS = [
    (Options(t=1, z=True, D="channel", poison=7.0), 3),
    (Options(t=1, io="bf16", h=2, g=1, p=35, gentle=True, limit=(0.05, 0.8), seed=1), 4),
    (Options(t=1, state="bf16", io="fp16", g=1, h=3, z=True, D="", seed=4, poison=-2.0), 1),
    (Options(b=2, t=1, state="fp16", io="bf16", h=2, p=5, softplus=False, bias=False, seed=5), 2),
]


def check_strong(module: ModuleType, short: bool) -> None:
    call, ring, S = strong("ssd_buffered", Options(b=2, t=4, io="bf16", p=33, n=40), 16, 12)
    call.run(module, ring=ring, short=short)
    assert_close_to(call["S"][call.named], S)


def check_strong_flush(module: ModuleType, capacity: int, held: int) -> None:
    call, ring, S = strong("ssd_buffered", Options(b=2, t=4, io="bf16", p=33, n=40), capacity, held)
    module.ssd_flush(call["S"], ring, call["A"], 2, slots=call["slots"])
    assert_close_to(call["S"][call.named], S)


def check_strong_step(module: ModuleType, output_only: bool, weak: bool) -> None:
    """The new token's decay weak or strong as well, behind strong ones."""
    call, ring, S = strong("ssd_buffered_step", Options(b=2, t=1, io="bf16", p=33, n=40), 16, 15)
    if weak:
        call["dt"] /= 32
    step, x, B = (doubles(call[name])[:, 0] for name in ("dt", "x", "B"))
    grown = np.exp(step * doubles(call["A"]))[..., None, None] * S
    call.run(module, ring=ring, output_only=output_only)
    entry = np.einsum("bh,bhp,bhn->bhpn", step, x, B.repeat(2, axis=1))
    assert_close_to(call["S"][call.named], grown + entry)


def check_flush(module: ModuleType, t: int = 3, capacity: int = 7) -> None:
    call = ssd.drawn("ssd_buffered", Options(t=t, io="bf16", gentle=True, p=35, n=18))
    ring, b = ring_of(call.options, capacity), call.options.b  # type: ignore[arg-type]
    _, S = ssd.scanned(call, order="output_only")
    call.run(ssd_buffered, ring=ring)
    said: dict[str, Any] = {"capacity": capacity, "slots": call["slots"]}
    cursors.commit_window(ring.origin, ring.held, torch.full((b,), t), window=t, **said)
    start, kept = ring.origin.clone(), Kept(S=call["S"], **ring.tensors._asdict())
    module.ssd_flush(call["S"], ring, call["A"], b, slots=call["slots"])
    check_within(doubles(call["S"][call.named]), S)
    kept.check(S=call.named)
    cursors.commit_flush(ring.origin, ring.held, rows=b, **said)
    assert not ring.held[call.named].any()
    assert torch.equal(ring.origin[call.named], (start[call.named] + t) % capacity)


def check_cancelling(module: ModuleType, **how: Any) -> None:
    """Outputs that are the last bits of the state: two elements cancel but for 2^-20."""
    call = held("ssd_buffered", Held(b=1, t=2, h=2, g=1, p=18, n=40, io="bf16", D="", bias=False, capacity=5))
    call["dt"].fill_(-200.0)  # softplus: no step
    for x, first, second in (call["S"], 1 + 2.0**-9 + 2.0**-20, 1 + 2.0**-9), (call["C"], 1.0, -1.0):
        x.zero_()
        x[..., 3], x[..., 35] = first, second
    call.run(module, **how)
    assert bool((call["out"] == 2.0**-20).all())


def check_shared(module: ModuleType) -> None:
    """One or two programs a launch: runs that end within heads, groups and rows, and several of them for a program."""
    short: Any = import_module(f"{module.__package__}.ssd_buffered_short")
    resident = short.FLUSHED_PROGRAMS, short.OPEN_PROGRAMS
    short.FLUSHED_PROGRAMS, short.OPEN_PROGRAMS = 1, 2
    try:
        check_run(module, replace(WINDOWS[2][0], b=3, h=4, g=2, p=18, n=35), 5, windows=4, apart=True, short=True)
    finally:
        short.FLUSHED_PROGRAMS, short.OPEN_PROGRAMS = resident


CUT = {"block_p": 16, "program_p": 32}


def check_cut(module: ModuleType) -> None:
    """Heads of which some are cut into a program for each tile: the bytes of the formula, the bits of whole heads."""
    o, found = Held(b=2, t=1, h=2, g=1, p=48, io="bf16", capacity=5), []
    for whole in (8, 5, 0):
        how = CUT | {"whole": whole}
        for count in (2, 4):
            check_bytes(STEP, module, replace(o, held=count, how=how))
        call = held("ssd_buffered_step", replace(o, padding=True, how=how))
        count = call["ring"].held
        count.copy_(torch.tensor([4, 2]).repeat(len(count))[: len(count)])
        call.run(module)
        found.append(bits(call))
    assert all(same(found[0], other) for other in found[1:])


def runs(*cases: tuple[Options, int, dict[str, Any]]) -> list[Any]:
    """Windows, or tokens, in a row as checks."""
    return [lambda module, case=case: check_run(module, *case[:2], **case[2]) for case in cases]


SHORT = {"block_p": 16, "short": True}
GROUPS = replace(WINDOWS[2][0], b=2, h=4, p=18)
BUFFERED = Subject(
    "ssd_buffered",
    ssd_buffered,
    lambda o: held("ssd_buffered", o),
    lambda call: [],
    cover=[],
    moves=[
        Held(b=1, t=2, held=3, how={"block_p": 16, "program_p": 16}),
        Held(b=1, t=2, h=6, held=3, how={"block_p": 16, "program_p": 32, "heads": 3}),
        *(
            replace(o, held=count, how=how)
            for o in (Held(b=2, h=2, z=True), Held(b=1, t=2, io="bf16", g=1, p=33))
            for count in (0, 3, 6)
            for how in (
                {},
                {"block_p": 16, "program_p": 16, "apart": False, "short": False},
                {"block_p": 16, "program_p": 48, "heads": o.h // o.g, "apart": True, "short": False},
                {"program_p": 32, "apart": True, **SHORT},
                {"program_p": 16, "apart": False, **SHORT},
            )
        ),
        *(Held(b=2, h=2, t=2, io="bf16", held=3, window=4, how={"window": 4, "short": s}) for s in (True, False)),
    ],
    once=("S", "store ring.B"),
    formula=ring_bytes,
    special=runs(
        (GROUPS, 5, {"windows": 4, "block_p": 16, "program_p": 32, "heads": 2, "short": False}),
        (WINDOWS[0][0], 8, {"windows": 4, "apart": True}),
        (Options(b=1, io="bf16", t=9, h=1, g=1, p=3, n=5, gentle=True), 36, {"windows": 5}),
    ),
)
NARROW = Held(b=1, t=2, h=2, g=1, io="bf16", held=3)
BUFFERED_SHORT = replace(
    BUFFERED,
    name="ssd_buffered, short",
    moves=[
        replace(NARROW, b=2, held=6, how={"program_p": 16, "apart": True, **SHORT}),
        replace(NARROW, h=4, g=2, how={"program_p": 16, **SHORT}),
        replace(NARROW, h=6, g=2, p=18, how={"program_p": 32, **SHORT}),
        *(replace(NARROW, p=p, n=n, how={"program_p": w, **SHORT}) for p, n, w in ((40, 32, 32), (16, 40, 16))),
    ],
    special=[
        lambda module: check_cancelling(module, short=True),
        *runs(
            (replace(GROUPS, n=35), 5, {"windows": 4, "program_p": 32, **SHORT}),
            (replace(GROUPS, n=35, t=3, D="head"), 8, {"windows": 4, "program_p": 16, "apart": True, "short": True}),
            (replace(GROUPS, n=35, t=3, D="head"), 8, {"windows": 4, "program_p": 48, "short": True}),
            (WINDOWS[0][0], 8, {"windows": 2, "short": True}),
            (replace(GROUPS, n=35, b=4, t=3), 8, {"windows": 4, "short": True, "flushed_first": True}),
        ),
        check_shared,
    ],
)
TOKEN = {"step": True, "block_p": 16}
STEP = Subject(
    "ssd_buffered_step",
    ssd_buffered_step,
    lambda o: held("ssd_buffered_step", o),
    lambda call: [],
    cover=[],
    moves=[
        Held(b=1, t=1, capacity=5, held=2, how={"block_p": 16}),
        Held(b=1, t=1, h=2, g=1, p=48, capacity=5, held=2, how=CUT),
        *(
            replace(o, capacity=5, held=count, how=how | {"output_only": output_only})
            for o in (Held(b=2, t=1, h=2, z=True), Held(b=1, t=1, io="bf16", g=1, p=33))
            for count in (0, 3, 4)
            for how in ({}, {"block_p": 16, "program_p": 48}, {"block_p": 32})
            for output_only in (True, False)
        ),
    ],
    formula=ring_bytes,
    special=[
        *runs(
            *((STEPS[1][0], 4, {"windows": 6, "output_only": output_only, **TOKEN}) for output_only in (True, False)),
            (STEPS[0][0], 3, {"windows": 4, **TOKEN}),
            (replace(STEPS[1][0], n=40, p=48), 4, {"windows": 6, "program_p": 32, **TOKEN}),
            (Options(b=1, t=1, io="bf16", h=1, g=1, p=3, n=40, gentle=True), 19, {"windows": 30, "step": True}),
        ),
        check_cut,
    ],
)
SUBJECTS = [BUFFERED, BUFFERED_SHORT, STEP]
