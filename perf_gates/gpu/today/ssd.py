"""SSD: a plain step, a window that keeps every state, and verification from a ring of 22.

    FlashInfer       `selective_state_update` and `checkpointing_ssu`, in CUDA, each by its own choice of algorithm
    vLLM             `selective_state_update` in Triton

The ring is timed at each number of entries of a flush cycle, with the cursors at rest; the time of a launch is the mean over
the cycle. Its first launch is judged where it flushes: outputs after the history, and the checkpoint with the history in it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from perf_gates.gpu.judge.call import Call, launcher, pulled
from ssmspec_ref import error_bounds as eb
from ssmspec_ref.contract import NumericContract
from ssmspec_ref.records import concat
from ssmspec_ref.shapes import Array
from ssmspec_ref.ssd import SSDParams, SSDWindow

from . import native
from .loading import vllm
from .side import FAST, TRITON, Pairs, Side, blank, bytes_of, copies_of, flush_cycle, ours, slots_of

CAPACITY = 22
RING_TILE = 16
"""Tokens of a tile of tensor cores, to which FlashInfer pads a window; old entries are padded to 8."""


class Drawn:
    """The inputs of a case, the same for every side, and their float64."""

    def __init__(self, call: Call, sizes: tuple[int, int, int, int], batch: int, tokens: int) -> None:
        self.call, self.sizes, self.batch, self.tokens, device = call, sizes, batch, tokens, call.device
        h, p, n, g = sizes
        self.x, self.dt = call.normal(batch, tokens, h, p), call.normal(batch, tokens, h)
        self.B, self.C = call.normal(batch, tokens, g, n), call.normal(batch, tokens, g, n)
        self.A, self.D, self.bias = -call.uniform(0.05, 1.0, h), call.normal(h), call.normal(h, mean=-1.0)
        self.wide_A = self.A[:, None, None].expand(h, p, n)
        self.wide_D, self.wide_bias = (x[:, None].expand(h, p) for x in (self.D, self.bias))
        self.wide_dt = self.dt[..., None].expand(batch, tokens, h, p)
        self.rows, self.heads = call.sample(batch, 2) if batch > 1 else call.sample(1, 1), call.sample(h, 3)
        self.device = device
        A_h, D_h, bias_h = (pulled(x, self.heads) for x in (self.A, self.D, self.bias))
        self.params = SSDParams(A_h, D_h, bias_h, dt_softplus=True)

    def given(self) -> dict[str, Any]:
        """The arguments of our launchers. D and the bias are in bf16, as engines hold them."""
        tensors = {"x": self.x, "dt": self.dt, "A": self.A, "B": self.B, "C": self.C}
        return tensors | {"D": self.D, "dt_bias": self.bias}

    def window(self, x: Tensor, dt: Tensor, B: Tensor, C: Tensor) -> SSDWindow:
        """The judged rows and heads of tokens."""
        group = self.heads // (self.sizes[0] // self.sizes[3])
        of = [pulled(t, self.rows, heads) for t, heads in ((x, self.heads), (dt, self.heads), (B, group), (C, group))]
        return SSDWindow(*of)

    def held(self, pool: Tensor, slots: Tensor) -> Array:
        """The judged part of the states in some slots of the rows."""
        return pulled(
            pool, slots[torch.as_tensor(self.rows, device=slots.device)].flatten().cpu().numpy(), self.heads, axis=1
        )

    def read(self, out: Tensor) -> Array:
        return pulled(out, self.rows, self.heads)

    def step(self, S: Array, contract: NumericContract) -> Pairs:
        return eb.ssd.scan(S, self.window(self.x, self.dt, self.B, self.C), self.params, contract)

    def snapshots(self, S: Array, contract: NumericContract) -> Pairs:
        return eb.ssd.states(S, self.window(self.x, self.dt, self.B, self.C), self.params, contract)


# --- a plain step ---


def step_ours(d: Drawn) -> Side:
    return _step(d, ours(), lambda pool, index, out: launcher("ssd_scan")(pool, **d.given(), slots=index, out=out))


def step_vllm(d: Drawn) -> Side:
    update = vllm().selective_state_update
    token = {"x": d.x[:, 0], "dt": d.wide_dt[:, 0], "A": d.wide_A, "B": d.B[:, 0], "C": d.C[:, 0]}
    more = {"D": d.wide_D, "dt_bias": d.wide_bias, "dt_softplus": True}
    return _step(d, TRITON, lambda pool, index, out: update(pool, **token, **more, state_batch_indices=index, out=out[:, 0]))


def step_flashinfer(d: Drawn) -> Side:
    (h, p, n, g), tensors = d.sizes, _named(d)
    run = native.call(f"flashinfer_step_p{p}_n{n}_t1", "flashinfer_step", native.STEP)
    sizes = {"batch": d.batch, "heads": h, "groups": g}
    return _step(d, FAST, lambda pool, index, out: run(**sizes, **tensors, slots=len(pool), state=pool, index=index, out=out))


def _step(d: Drawn, contract: NumericContract, launch: Callable[[Tensor, Tensor, Tensor], object]) -> Side:
    h, p, n, g = d.sizes
    copies = copies_of(bytes_of("ssd_scan", d.batch, 1, h, p, n, g), 4 * d.batch * h * p * n)
    pool = torch.randn(1 + copies * d.batch, h, p, n, device=d.device)
    slots = slots_of(copies, d.batch, d.device)[..., 0]
    written, outs = blank(d.x, copies)

    def held() -> Array:
        return d.held(pool, slots[0])

    return Side(
        lambda i: launch(pool, slots[i], outs[i]), written, [pool], lambda: (held(),), lambda S: d.step(S, contract),
        lambda: d.read(outs[0]), held, contract,
    )  # fmt: skip


# --- a window that keeps the state after every token ---

Keeping = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], object]
"""The pool, the slots that are read (b), the places of what is kept (b, t), these places as one part of the pool, outputs."""


def snapshots_ours(d: Drawn) -> Side:
    run = launcher("ssd_snapshots")
    return _snapshots(
        d, ours(), lambda pool, first, places, kept, out: run(pool, **d.given(), places=places, slots=first, out=out)
    )


def snapshots_vllm(d: Drawn) -> Side:
    update, batch, tokens = vllm().selective_state_update, d.batch, d.tokens
    run = {"x": d.x, "dt": d.wide_dt, "B": d.B, "C": d.C}
    flat = {name: x.flatten(0, 1) for name, x in run.items()} | {"A": d.wide_A, "D": d.wide_D, "dt_bias": d.wide_bias}
    ends = torch.arange(0, batch * tokens + 1, tokens, device=d.device, dtype=torch.int32)
    windows = {"num_accepted_tokens": torch.ones_like(ends[1:]), "cu_seqlens": ends}

    def launch(pool: Tensor, first: Tensor, places: Tensor, kept: Tensor, out: Tensor) -> object:
        index = {"state_batch_indices": first[:, None].expand(batch, tokens), "dst_state_batch_indices": places}
        return update(pool, **flat, dt_softplus=True, **index, **windows, out=out.flatten(0, 1))

    return _snapshots(d, TRITON, launch)


def snapshots_flashinfer(d: Drawn) -> Side:
    """Its states after the tokens lie in a separate buffer, with a place for each row."""
    (h, p, n, g), given = d.sizes, _named(d)
    run = native.call(f"flashinfer_step_p{p}_n{n}_t{d.tokens}", "flashinfer_step", native.STEP)
    numbers = torch.arange(d.batch, device=d.device, dtype=torch.int32)
    more = {"batch": d.batch, "heads": h, "groups": g, "middle_index": numbers}
    return _snapshots(
        d, FAST, lambda pool, first, places, kept, out: run(
            **given, **more, slots=len(pool), state=pool, index=first, middle=kept, out=out
        )
    )  # fmt: skip


def _snapshots(d: Drawn, contract: NumericContract, launch: Keeping) -> Side:
    """The states of a copy: first those that are read, then those that are kept, row by row."""
    (h, p, n, g), b, t = d.sizes, d.batch, d.tokens
    each = b * (1 + t)
    copies = copies_of(bytes_of("ssd_snapshots", b, t, h, p, n, g), 4 * each * h * p * n)
    pool = torch.randn(1 + copies * each, h, p, n, device=d.device)
    slots = slots_of(copies, each, d.device)[..., 0]
    written, outs = blank(d.x, copies)
    parts = [(one[:b], one[b:].view(b, t), pool[1 + i * each + b : 1 + (i + 1) * each]) for i, one in enumerate(slots)]
    return Side(
        lambda i: launch(pool, *parts[i], outs[i]), written, [pool], lambda: (d.held(pool, parts[0][0]),),
        lambda S: d.snapshots(S, contract), lambda: d.read(outs[0]),
        lambda: d.held(pool, parts[0][1]).reshape(len(d.rows), t, len(d.heads), p, n), contract,
    )  # fmt: skip


# --- verification from a ring ---


def ring_ours(d: Drawn) -> Side:
    (h, p, n, g), contract = d.sizes, ours(order="output_only")
    rows = _copies(d)
    call = d.call
    entries = call.normal(rows, CAPACITY, h, p), _steps(d, rows, (CAPACITY, h)), call.normal(rows, CAPACITY, g, n)
    origin, held = (torch.zeros(rows, device=d.device, dtype=torch.int32) for _ in range(2))
    ring = launcher("ssd_ring", "Ring")(*entries, origin, held)

    def launch(pool: Tensor, index: Tensor, out: Tensor) -> object:
        return launcher("ssd_buffered")(pool, ring, **d.given(), slots=index, out=out)

    return _ring(d, contract, held, launch, ring.x, ring.dt, ring.B)


def ring_flashinfer(split: int | None = None, two: bool = False, stages: int = 0) -> Callable[[Drawn], Side]:
    """One kernel by `split` programs of a head, or two kernels."""

    def made(d: Drawn) -> Side:
        (h, p, n, g), tensors, rows = d.sizes, _named(d), _copies(d)
        run = native.call(f"flashinfer_ring_p{p}_h{h}", "flashinfer_ring", native.RING)
        call = d.call
        x, dt, B = call.normal(rows, h, CAPACITY, p), _steps(d, rows, (h, CAPACITY)), call.normal(rows, g, CAPACITY, n)
        start, held = (torch.zeros(rows, device=d.device, dtype=torch.int32) for _ in range(2))
        room: dict[str, Tensor] = {}
        if two:
            pad, old = -(-d.tokens // RING_TILE) * RING_TILE, -(-(CAPACITY - d.tokens) // 8) * 8
            room["cb"] = torch.empty(d.batch, h, 32, pad // 2, device=d.device, dtype=torch.bfloat16)
            room["sums"] = torch.empty(d.batch, h, pad, device=d.device)
            room["cb_old"] = torch.empty(d.batch, h, 32, old // 2, device=d.device, dtype=torch.bfloat16)
        ring = {"x_cache": x, "dt_cache": dt, "B_cache": B, "start": start, "held": held}
        numbers = {"batch": d.batch, "slots": rows, "split": split or 1, "stages": stages}

        def launch(pool: Tensor, index: Tensor, out: Tensor) -> object:
            return run(**numbers, **tensors, **ring, **room, state=pool, index=index, out=out)

        contract = replace(FAST, order="output_only", dot="bf16", truncates=True)
        views = x.transpose(1, 2), dt.transpose(1, 2), B.transpose(1, 2)
        return _ring(d, contract, held, launch, *views, kernels=2 if two else 1)

    return made


def _copies(d: Drawn) -> int:
    """Slots of the pool: those of the rows, and slot 0."""
    h, p, n, _ = d.sizes
    return 1 + d.batch * copies_of(4 * d.batch * h * p * n, 4 * d.batch * h * p * n)


def _steps(d: Drawn, rows: int, shape: tuple[int, int]) -> Tensor:
    """Step sizes of tokens that are in a ring: softplus was applied."""
    return torch.rand(rows, *shape, device=d.device) * 0.5


def _ring(
    d: Drawn,
    contract: NumericContract,
    held: Tensor,
    launch: Callable[[Tensor, Tensor, Tensor], object],
    x: Tensor,
    dt: Tensor,
    B: Tensor,
    kernels: int = 1,
) -> Side:
    """x, dt and B of the ring (slot, entry, head, ..). The window is judged after all the entries at which it is due."""
    (h, p, n, _), t = d.sizes, d.tokens
    copies = (len(held) - 1) // d.batch
    pool = torch.randn(len(held), h, p, n, device=d.device)
    slots, phases = slots_of(copies, d.batch, d.device)[..., 0], flush_cycle(t, CAPACITY)
    written, outs = blank(d.x, copies)
    at = slots[0][torch.as_tensor(d.rows, device=d.device)].long()

    def start() -> tuple[Array, ...]:
        held.fill_(phases[-1])
        group, rows = d.heads // (d.sizes[0] // d.sizes[3]), np.arange(len(at))
        past = [pulled(u[at, : phases[-1]], rows, heads) for u, heads in ((x, d.heads), (dt, d.heads), (B, group))]
        return d.held(pool, slots[0]), *past

    def expected(S: Array, *past: Array) -> Pairs:
        """Entries hold step sizes; those of the window are what softplus makes of them."""
        history, new = SSDWindow(past[0], past[1], past[2], past[2]), d.window(d.x, d.dt, d.B, d.C)
        step = eb.softplus(eb.exact(new.dt, contract) + eb.exact(pulled(d.bias, d.heads), contract))
        plain = replace(d.params, dt_bias=None, dt_softplus=False)
        errors = {"dt": np.concatenate([np.zeros_like(history.dt), step.error], axis=1)}
        y, _ = eb.ssd.scan(S, concat(history, replace(new, dt=step.value)), plain, contract, inexact=errors)
        _, folded = eb.ssd.scan(S, history, plain, contract)
        return y[:, -t:], folded

    def phase(entries: int) -> Callable[[], object]:
        return lambda: held.fill_(entries)

    side = Side(
        lambda i: launch(pool, slots[i], outs[i]), written, [pool], start, expected, lambda: d.read(outs[0]),
        lambda: d.held(pool, slots[0]), contract, kernels,
    )  # fmt: skip
    for entries in phases:
        side.cycle += [phase(entries), *(lambda i=i: launch(pool, slots[i], outs[i]) for i in range(copies))]
    side.steps = len(phases)
    return side


def _named(d: Drawn) -> dict[str, Tensor]:
    """The tensors of FlashInfer's arguments that all launches share."""
    return {"x": d.x, "dt": d.dt, "bias": d.bias, "A": d.A, "B": d.B, "C": d.C, "D": d.D}
