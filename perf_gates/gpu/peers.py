"""Time kernels of other projects beside ours: `python -m perf_gates.gpu.peers --peers .peers --out FILE`.

Peers are Triton sources only, and no part of this repository: the folder holds what their wheels and archives hold,
unpacked (`fla` and `einops`; `mamba_ssm/ops/triton` and `mamba_ssm/utils`; `vllm/model_executor/layers/mamba/ops`). They are
imported without their packages, whose initialisation wants extensions in CUDA that nothing timed here needs. A peer that is
not there is named, and the rest goes on. What a peer computes is compared with ours before either is timed.

    step        vLLM `selective_state_update`, tuned for the machine where it brings a file; fla `fused_recurrent`
    snapshots   vLLM `selective_state_update` with a place for the state after every token
    chunks      mamba-ssm `mamba_chunk_scan_combined`, fla `chunk_gated_delta_rule`: timed by `prefill`
"""

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.compiler.errors import CompilationError
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import OutOfResources

from perf_gates.clock import copies_for, copy_bytes_per_us, graph_us
from perf_gates.gpu.kernels import BATCHES, DELTA, SSD, Timing, bf16, kernel
from perf_gates.machine import fingerprint

NAMES = {
    "vllm": "vllm.model_executor.layers.mamba.ops.mamba_ssm",
    "mamba_ssm": "mamba_ssm.ops.triton.ssd_combined",
    "fla": "fla.ops.gated_delta_rule",
}
APART = 0.03
"""The largest difference, in parts of the largest number, between two that compute the same from bf16."""
ROOM = 40 * 2**30
"""Bytes that the rotating states of one measurement may take."""

Peers = dict[str, ModuleType]
Found = list[tuple[str, float, int]]


def load(folder: Path | None) -> Peers:
    """The peers that the folder holds, by the names of `NAMES`; the others are named."""
    if folder is not None:
        sys.path.append(str(folder))
        _stand_in(folder)
    found = {}
    for name, module in NAMES.items():
        try:
            found[name] = importlib.import_module(module)
        except ImportError as error:
            print(f"no {name}: {error}")
    return found


def _stand_in(folder: Path) -> None:
    """Packages without their initialisation, and what the kernels of vLLM take from the rest of it."""

    def module(name: str, **contents: Any) -> None:
        made = ModuleType(name)
        made.__path__ = [str(folder / name.replace(".", "/"))]
        vars(made).update(contents)
        sys.modules[name] = made

    parts = NAMES["vllm"].split(".")
    for name in ("mamba_ssm", *(".".join(parts[:i]) for i in range(1, len(parts)))):
        module(name)
    for name in ("vllm.utils", "vllm.v1", "vllm.v1.attention", "vllm.v1.attention.backends", "vllm._custom_ops"):
        module(name)
    silent = SimpleNamespace(info_once=lambda *_, **__: None, warning_once=lambda *_, **__: None)
    module("vllm.envs", VLLM_TUNED_CONFIG_FOLDER=None)
    module("vllm.logger", init_logger=lambda _: silent)
    module("vllm.platforms", current_platform=SimpleNamespace(is_xpu=lambda: False, is_cpu=lambda: False))
    module("vllm.triton_utils", HAS_TRITON=True, tl=tl, triton=triton)
    device = {"get_device_name_as_file_name": lambda: torch.cuda.get_device_name().replace(" ", "_")}
    module("vllm.utils.platform_utils", **device)
    module("vllm.v1.attention.backends.utils", NULL_BLOCK_ID=0)


def compile_first(work: Callable[[Path | None], object], folder: Path | None, jobs: int) -> None:
    """Run `work` in processes that each compile a share of the autotuned configurations into Triton's cache on disk."""
    if jobs < 2:
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for done in [pool.submit(_compile_share, work, folder, i, jobs) for i in range(jobs)]:
            done.result()


def _compile_share(work: Callable[[Path | None], object], folder: Path | None, share: int, shares: int) -> None:
    def every(self: Autotuner, *args: Any, **named: Any) -> None:
        for config in self.configs[share::shares]:
            with suppress(OutOfResources, CompilationError):
                self.fn.run(*args, **named, **config.all_kwargs())

    Autotuner.run = every
    with open(os.devnull, "w") as sys.stdout:
        work(folder)


def same(name: str, ours: Tensor, theirs: Tensor) -> None:
    """Raises: RuntimeError for a peer that does not compute what we do, or does not write all of it."""
    apart = float((ours.float() - theirs.float()).abs().max() / ours.float().abs().max())
    if not apart <= APART:
        raise RuntimeError(f"{name} differs from ours by {apart:.2g} of the largest; nothing is timed")


def rotated(launch: Callable[[int], object], copies: int) -> float:
    """The time of one launch over rotating states."""
    return graph_us([lambda i=i: launch(i) for i in range(copies)])  # type: ignore[misc]


def ssd(peers: Peers, model: str, batch: int, t: int) -> Found:
    """A plain step (t = 1), or a window with the state after every token: ours, then vLLM's. Slot 0 is vLLM's padding."""
    h, p, n, g = SSD[model]
    module, name = ("ssd_scan", "step") if t == 1 else ("ssd_snapshots", f"snapshots of {t}")
    launcher, bytes_ = kernel(module), kernel(module, "traffic_bytes")(batch, t, h, p, n, g)
    states = batch * (1 if t == 1 else 1 + t)
    copies = max(2, min(copies_for(bytes_), ROOM // (4 * states * h * p * n)))
    pool = torch.randn(1 + copies * states, h, p, n, device="cuda")
    slots = 1 + torch.arange(copies * states, device="cuda", dtype=torch.int32).view(copies, batch, -1)
    first, places = slots[..., 0].contiguous(), slots[..., 1:].contiguous()
    x, dt, B, C = bf16(batch, t, h, p), bf16(batch, t, h), bf16(batch, t, g, n), bf16(batch, t, g, n)
    A, D, bias = -torch.rand(h, device="cuda"), torch.randn(h, device="cuda"), torch.randn(h, device="cuda")
    out, peer_out = (torch.full_like(x, float("nan")) for _ in range(2))
    ends = torch.arange(0, batch * t + 1, t, device="cuda", dtype=torch.int32)
    read, ones = slots[..., :1].expand(copies, batch, t).contiguous(), torch.ones_like(ends[1:])
    x_run, B_run, C_run, out_run = (u.flatten(0, 1) for u in (x, B, C, peer_out))
    wide = dt.flatten(0, 1)[..., None].expand(-1, -1, p), A[:, None, None].expand(h, p, n)
    over = D[:, None].expand(h, p), bias[:, None].expand(h, p)

    def ours(i: int) -> None:
        kept = (places[i],) if t > 1 else ()
        launcher(pool, x, dt, A, B, C, *kept, D=D, dt_bias=bias, slots=first[i], out=out)

    def theirs(i: int) -> None:
        index = {"state_batch_indices": first[i]}
        if t > 1:
            index = {"state_batch_indices": read[i], "dst_state_batch_indices": places[i]}
            index |= {"num_accepted_tokens": ones, "cu_seqlens": ends}
        update = peers["vllm"].selective_state_update
        update(pool, x_run, *wide, B_run, C_run, *over, dt_softplus=True, out=out_run, **index)

    before = pool[: 1 + states].clone()
    ours(0)
    after = pool[: 1 + states].clone()
    pool[: 1 + states] = before
    if "vllm" in peers:
        theirs(0)
        same("vLLM's output", out, peer_out)
        same("vLLM's state", after, pool[: 1 + states])
    found = [(f"{name}, ours", rotated(ours, copies), bytes_)]
    if "vllm" in peers:
        found.append((f"{name}, vLLM", rotated(theirs, copies), bytes_))
    return found


def delta(peers: Peers, model: str, batch: int) -> Found:
    """A plain step: ours, then fla's, which writes a new state and leaves the old one."""
    g, h, k, v = DELTA[model]
    launcher, bytes_ = kernel("delta_scan"), kernel("delta_scan", "traffic_bytes")(batch, 1, g, h, k, v)
    copies = max(2, min(copies_for(bytes_), ROOM // (4 * batch * h * k * v)))
    pool = torch.randn(copies, batch, h, k, v, device="cuda")
    q, key, value = bf16(batch, 1, g, k), bf16(batch, 1, g, k), bf16(batch, 1, h, v)
    gate, beta = -torch.rand(batch, 1, h, device="cuda"), torch.rand(batch, 1, h, device="cuda")
    out = torch.full_like(value, float("nan"))

    def ours(i: int) -> None:
        launcher(pool[i], q, key, value, gate, beta, out=out)

    def theirs(i: int) -> tuple[Tensor, Tensor]:
        update = peers["fla"].fused_recurrent_gated_delta_rule
        options = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
        found: tuple[Tensor, Tensor] = update(q, key, value, gate, beta=beta, initial_state=pool[i], **options)
        return found

    peer = theirs(0) if "fla" in peers else None
    ours(0)
    if peer is not None:
        same("fla's output", out, peer[0])
        same("fla's state", pool[0], peer[1])
    found = [("step, ours", rotated(ours, copies), bytes_)]
    if peer is not None:
        found.append(("step, fla", rotated(theirs, copies), bytes_))
    return found


def measure(peers: Peers, batches: tuple[int, ...], window: int = 6) -> dict[str, Any]:
    """Every model, batch and operation; `of_step` is the time in plain steps of ours."""
    copy = copy_bytes_per_us()
    timings: list[Timing] = []
    for batch in batches:
        for model in (*SSD, *DELTA):
            found = (
                delta(peers, model, batch)
                if model in DELTA
                else ssd(peers, model, batch, 1) + ssd(peers, model, batch, window)
            )
            step = found[0][1]
            for name, us, bytes_ in found:
                timings.append(Timing(model, name, batch, us, bytes_, bytes_ / us / copy, us / step))
                of_copy = bytes_ / us / copy
                print(
                    f"{model:20s} {batch:4d} {name:20s} {us:9.2f} us {of_copy:5.2f} of copy {us / step:6.2f} steps",
                    flush=True,
                )
    return {"machine": fingerprint() | {"copy_bytes_per_us": copy}, "timings": [asdict(t) for t in timings]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--batches", type=int, nargs="*", default=list(BATCHES))
    options = parser.parse_args()
    results = measure(load(options.peers), tuple(options.batches))
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
