"""How near one launch a step comes to its bytes: `python -m perf_gates.gpu.one_launch --out FILE`, 40 s on an H200.

First three steps are compared with float64, and the third is repeated twenty times: the same bits each time. Then, all in one
run and as medians of event times:

    step           the whole step; a row for each number of copies that may be under way at once
    no waits       words of other programs are read, not waited for (wrong numbers): what waiting costs
    chain          no weights: what the ring has to hide
    stream         weights and states alone: the least time of the step
    engine         the plain step as the engine launches it, a recorded graph

Every wait is bounded; one that gives up ends the process and says where.
"""

import ctypes
import sys
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
import typer
from torch import Tensor

from conformance.main import run_command
from perf_gates import files
from perf_gates.gpu.clock import copy_bytes_per_us, event_us
from perf_gates.machine import fingerprint, need_gpu

from . import nvrtc
from .shares import CONV, HEADS, INNER, OUT, STATE, VOCABULARY, D, shares

LAYERS, HEAD_CHANNELS, THREADS = 64, INNER // HEADS, 352
SHARED = 20 * 10240 + 2 * INNER + 4 * (2 * STATE + 12 + 24 + 24 + 40 + 40) + 2 * 20 * 8
POINTERS = (
    "W_in", "W_out", "W_head", "norm", "norm_last", "norm_gate", "taps", "bias", "A", "skip", "dt_bias", "S", "window", "h0",
    "v", "early", "g", "logits", "failed", "shares",
)  # fmt: skip
PLACES = (
    "",
    "room in the ring",
    "weights",
    "states",
    "copies under way",
    "the residual stream",
    "B, C and dt",
    "gated outputs",
)
MODES = {"step": 0, "no waits": 1, "chain": 2, "stream": 3}
FLIGHTS = 20, 8, 6, 5, 4, 3
CHOSEN = 4
ROUNDING = 0.02
"""After 64 layers that round activations to bf16, 2^-9 each, in the reference too: sums in another order flip roundings."""


class Model(ctypes.Structure):
    _fields_ = (
        [(name, ctypes.c_void_p) for name in POINTERS]
        + [(name, ctypes.c_int) for name in ("layers", "parity", "flight", "mode")]
        + [("epoch", ctypes.c_uint)]
    )


class Step:
    """A model with random weights on the GPU, and its launches. `failed` is what waits that gave up said, of the last one."""

    failed: ClassVar[Tensor | None] = None

    def __init__(self, layers: int) -> None:
        self.layers, self.epoch = layers, 1
        self.launch = nvrtc.cooperative(nvrtc.cubin(nvrtc.source()), "step", THREADS, SHARED)
        self.tensors = drawn(layers)
        Step.failed = self.tensors["failed"]

    def __call__(self, parity: int, flight: int = CHOSEN, mode: int = 0) -> None:
        self.epoch += self.layers + 1
        pointers = [self.tensors[name].data_ptr() for name in POINTERS]
        self.launch(Model(*pointers, self.layers, parity, flight, mode, self.epoch), len(self.tensors["shares"]))

    @property
    def bytes(self) -> int:
        """Weights once, states and windows read and written."""
        t = self.tensors
        weights = 2 * sum(t[name].numel() for name in ("W_in", "W_out", "W_head"))
        return weights + 8 * t["S"].numel() + 4 * 6 * self.layers * CONV


def drawn(layers: int) -> dict[str, Tensor]:
    g = torch.Generator("cuda").manual_seed(1)

    def randn(*size: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
        made = torch.empty(*size, device="cuda", dtype=dtype)
        for part in made if made.dim() > 2 else [made]:
            part.copy_(torch.randn(part.shape, device="cuda", generator=g) * scale)
        return made

    def rand(*size: int) -> Tensor:
        return torch.rand(*size, device="cuda", generator=g)

    def words(*size: int) -> Tensor:
        return torch.zeros(*size, device="cuda", dtype=torch.int64)

    bf16, programs = torch.bfloat16, torch.cuda.get_device_properties(0).multi_processor_count
    return {
        "W_in": randn(layers, OUT, D, scale=D**-0.5, dtype=bf16),
        "W_out": randn(layers, D, INNER, scale=INNER**-0.5, dtype=bf16),
        "W_head": randn(VOCABULARY, D, scale=D**-0.5, dtype=bf16),
        "norm": 1 + randn(layers, D, scale=0.1), "norm_last": 1 + randn(D, scale=0.1),
        "norm_gate": 1 + randn(layers, INNER, scale=0.1), "taps": randn(layers, CONV, 4, scale=0.5),
        "bias": randn(layers, CONV, scale=0.1), "A": -0.2 - rand(layers, HEADS), "skip": randn(layers, HEADS),
        "dt_bias": randn(layers, HEADS), "S": randn(layers, INNER, STATE), "window": randn(2, layers, 3, CONV),
        "h0": randn(D), "v": words(D), "early": words(2 * STATE + HEADS), "g": words(INNER // 4, 2),
        "logits": torch.full((VOCABULARY,), float("nan"), device="cuda"),
        "failed": torch.zeros(programs, 8, dtype=torch.int32).pin_memory(),
        "shares": torch.tensor(shares(programs), device="cuda", dtype=torch.int32),
    }  # fmt: skip


def expected(t: dict[str, Tensor], S: Tensor, window: Tensor) -> Tensor:
    """The logits of a step in float64, rounded where the kernel rounds; S (l, c, n) and window (l, 3, c) move on in place."""
    silu = torch.nn.functional.silu

    def rounded(x: Tensor) -> Tensor:
        return x.bfloat16().double()

    h = t["h0"].double()
    for l in range(len(S)):
        factor = torch.rsqrt(h.square().mean() + 1e-5)
        p = t["W_in"][l].double() @ rounded(t["norm"][l] * h) * factor
        z, new, dt = p.split([INNER, CONV, HEADS])
        columns = torch.cat([window[l], new[None]])
        x, B, C = silu(t["bias"][l] + (t["taps"][l].T * columns).sum(0)).split([INNER, STATE, STATE])
        window[l].copy_(columns[1:])
        dt = torch.nn.functional.softplus(dt + t["dt_bias"][l]).repeat_interleave(HEAD_CHANNELS)
        decay = torch.exp(dt * t["A"][l].double().repeat_interleave(HEAD_CHANNELS))
        S[l].mul_(decay[:, None]).add_((dt * x)[:, None] * B)
        gated = (S[l] @ C + t["skip"][l].repeat_interleave(HEAD_CHANNELS) * x) * silu(z)
        g = rounded(gated * t["norm_gate"][l])
        h = h + t["W_out"][l].double() @ g * torch.rsqrt(gated.square().mean() + 1e-5)
    return t["W_head"].double() @ rounded(t["norm_last"] * h) * torch.rsqrt(h.square().mean() + 1e-5)


def apart(found: Tensor, wanted: Tensor) -> float:
    """The relative distance; NaN if something is not finite."""
    far = float((found.double() - wanted.double()).norm() / wanted.double().norm())
    return far if bool(torch.isfinite(found).all()) else float("nan")


def checked(layers: int) -> dict[str, Any]:
    """The largest distances from float64 over three steps, and whether the last one has the same bits twenty times."""
    step = Step(layers)
    t = step.tensors
    S, window, far = t["S"].double(), t["window"][0].double(), {"logits": 0.0, "S": 0.0, "window": 0.0}
    for number in range(3):
        kept = t["S"].clone(), t["window"].clone()
        t["logits"].fill_(float("nan")), t["window"][1 - number % 2].fill_(float("nan"))
        step(number % 2)
        torch.cuda.synchronize()
        found = t["logits"], t["S"], t["window"][1 - number % 2]
        for name, mine, wanted in zip(far, found, (expected(t, S, window), S, window), strict=True):
            far[name] = max(far[name], apart(mine, wanted)) if far[name] == far[name] else far[name]
    bits = t["logits"].clone()
    same = True
    for _ in range(20):
        t["S"].copy_(kept[0])
        t["window"].copy_(kept[1])
        step(0)
        torch.cuda.synchronize()
        same &= torch.equal(t["logits"], bits)
    return {"layers": layers, **far, "same_bits": same, "right": same and all(d <= ROUNDING for d in far.values())}


def median_us(launch: Callable[[], None], rounds: int = 31) -> float:
    for _ in range(4):
        launch()
    return sorted(event_us(launch, 0.0) for _ in range(rounds))[rounds // 2]


def engine_us() -> float:
    """The plain step at one row as the engine runs it."""
    from perf_gates.gpu.engine import bench, named

    step = named.named("mamba2-2.7b", "plain, window of 1", 1)
    assert step is not None
    return bench.timings(step)[0].us


def launching(step: Step, flight: int, mode: int) -> Callable[[], None]:
    """Steps that read and write the two windows in turn."""
    parity = cycle((0, 1))
    return lambda: step(next(parity), flight, mode)


def timed() -> dict[str, Any]:
    """Microseconds of everything, in one run."""
    rate, step = copy_bytes_per_us(), Step(LAYERS)
    rows: dict[str, Any] = {"copy_bytes_per_us": rate, "bytes": step.bytes, "at_copy_us": step.bytes / rate}
    rows["step_us"] = {str(flight): median_us(launching(step, flight, 0)) for flight in FLIGHTS}
    rows |= {f"{name}_us": median_us(launching(step, CHOSEN, mode)) for name, mode in MODES.items() if mode}
    rows["step_again_us"] = median_us(launching(step, CHOSEN, 0))
    del step
    torch.cuda.empty_cache()
    return rows | {"engine_us": engine_us()}


def said(error: BaseException, failed: Tensor | None) -> str:
    """The error, and which waits gave up; reading them needs nothing of the lost context."""
    rows = [] if failed is None else [(c, *row[:3]) for c, row in enumerate(failed.tolist()) if row[0]]
    waits = "; ".join(
        f"program {c}, thread {thread} waited for {PLACES[place]} ({detail})" for c, place, detail, thread in rows[:4]
    )
    return f"{str(error).splitlines()[0]}. {len(rows)} programs gave up. {waits}"


def measured(out: Path) -> int:
    checks = []
    for layers in (1, 4, LAYERS):
        checks.append(checked(layers))
        print(", ".join(f"{k} {v:.1e}" if isinstance(v, float) else f"{k} {v}" for k, v in checks[-1].items()), flush=True)
        torch.cuda.empty_cache()
    if not all(row["right"] for row in checks):
        print(f"not timed: farther than {ROUNDING} from float64, or other bits when repeated", file=sys.stderr)
        return 1
    rows = timed()
    for name, value in rows.items():
        if name.endswith("_us") and name != "copy_bytes_per_us":
            for flight, us in value.items() if isinstance(value, dict) else [("", value)]:
                label = f"{name.removesuffix('_us')} {flight}"
                print(f"{label:16} {us:9.1f} us  {us / rows['at_copy_us']:.3f} of the bytes at copy", flush=True)
    files.write(out, {"machine": fingerprint(), "checks": checks, **rows})
    return 0


def main(out: Annotated[Path, typer.Option(help="The file of the results.")]) -> int:
    need_gpu()
    try:
        return measured(out)
    except RuntimeError as error:
        print(said(error, Step.failed), file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(run_command(main))
