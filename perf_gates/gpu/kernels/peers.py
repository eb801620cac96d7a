"""Kernels of other projects, compared with ours.

Peers are Triton sources only, and not part of this repository: `python -m perf_gates.gpu.unpack_peers --into FOLDER`
downloads them (`fla` and `einops`; `mamba_ssm/ops/triton` and `mamba_ssm/utils`; `vllm/model_executor/layers/mamba/ops`),
each with its `dist-info`, from which `ratchet.peers` has the version. They are imported without their packages, whose
initialisation needs CUDA extensions that nothing timed here uses. A missing peer is reported, and the others run. A peer's
results are compared with ours before either is timed, and each launch of either has its own output, which
`perf_gates.gpu.output_guard` checks.

    step        vLLM `selective_state_update`, tuned for this GPU if it ships such a file; fla `fused_recurrent`
    snapshots   vLLM `selective_state_update` with a place for the state after every token
    buffered    vLLM `selective_state_update_replayssm_output_only`: standard decode, a whole flush cycle of 16 tokens
    chunks      mamba-ssm `mamba_chunk_scan_combined`, fla `chunk_gated_delta_rule`: timed by `prefill`
"""

import importlib
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
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

from perf_gates.gpu.clock import copies_for, graph_us, is_compiling
from perf_gates.gpu.output_guard import Outputs, numbered, own_outputs
from perf_gates.static.shapes import BATCHES, DELTA, SSD

from .steps import SCANS, Timing, bf16, delta_inputs, kernel, ssd_inputs

NAMES = {
    "vllm": "vllm.model_executor.layers.mamba.ops.mamba_ssm",
    "vllm_replay": "vllm.model_executor.layers.mamba.ops.selective_state_update_replayssm_output_only",
    "mamba_ssm": "mamba_ssm.ops.triton.ssd_combined",
    "fla": "fla.ops.gated_delta_rule",
}
APART = 0.03
"""The largest difference, relative to the largest number, between two results computed from bf16."""
WINDOW, BUFFERED, PERIOD = 6, 0, 16
"""Tokens of a window; the code for a ring measurement; its flush period."""
ROOM = 40 * 2**30
"""Most bytes of the rotating states of one measurement."""

Peers = dict[str, ModuleType]


_loaded: Peers = {}


def peers() -> Peers:
    """The peers that were loaded."""
    return _loaded


def load(folder: Path | None) -> None:
    """Imports the peers in the folder, by the names in `NAMES`; reports the others."""
    if folder is None:
        return
    sys.path.append(str(folder))
    _stand_in(folder)
    for name, module in NAMES.items():
        try:
            _loaded[name] = importlib.import_module(module)
        except ImportError as error:
            print(f"no {name}: {error}", flush=True)


def _stand_in(folder: Path) -> None:
    """Packages without their initialisation, and what vLLM's kernels use from the rest of it."""

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
    no = dict.fromkeys(("is_xpu", "is_cpu", "is_rocm", "is_device_capability_family"), lambda *_: False)
    module("vllm.platforms", current_platform=SimpleNamespace(**no))
    module("vllm.triton_utils", HAS_TRITON=True, tl=tl, triton=triton)
    device = {"get_device_name_as_file_name": lambda: torch.cuda.get_device_name().replace(" ", "_")}
    module("vllm.utils.platform_utils", **device)
    module("vllm.v1.attention.backends.utils", NULL_BLOCK_ID=0)


@contextmanager
def compiled_apart(share: int, shares: int) -> Iterator[None]:
    """Compiles a share of the configurations of every autotuned kernel that is launched, and times none of them."""
    run = Autotuner.run

    def each(self: Autotuner, *args: Any, **named: Any) -> None:
        for config in self.configs[share::shares]:
            with suppress(OutOfResources, CompilationError):
                self.fn.run(*args, **named, **config.all_kwargs())

    Autotuner.run = each
    try:
        yield
    finally:
        Autotuner.run = run


def same(name: str, ours: Tensor, theirs: Tensor) -> None:
    """Raises: RuntimeError for a peer whose result differs from ours, or that does not write all of it."""
    if is_compiling():
        return
    apart = float((ours.float() - theirs.float()).abs().max() / ours.float().abs().max())
    if not apart <= APART:
        raise RuntimeError(f"{name} differs from ours by {apart:.2g} of the largest; nothing is timed")


def rotated(launch: Callable[[int], object], copies: int, outputs: Outputs, states: Collection[Tensor]) -> float:
    """The time of one launch over rotating states, each with an output. Raises: WrongOutputError."""
    return graph_us([lambda i=i: launch(i) for i in range(copies)], outputs, states)  # type: ignore[misc]


def ssd(peers: Peers, model: str, batch: int, t: int) -> list[Timing]:
    """A plain step (t = 1), or a window with the state after every token: ours, then vLLM's. Slot 0 is vLLM's padding."""
    h, p, n, g = SSD[model]
    module, name = ("ssd_scan", "step") if t == 1 else ("ssd_snapshots", f"snapshots of {t}")
    launcher, bytes_ = kernel(module), kernel(module, "traffic_bytes")(batch, t, h, p, n, g)
    states = batch * (1 if t == 1 else 1 + t)
    copies = max(2, min(copies_for(bytes_), ROOM // (4 * states * h * p * n)))
    pool = torch.randn(1 + copies * states, h, p, n, device="cuda")
    slots = 1 + torch.arange(copies * states, device="cuda", dtype=torch.int32).view(copies, batch, -1)
    first, places = slots[..., 0].contiguous(), slots[..., 1:].contiguous()
    x, dt, B, C, A, D, bias = ssd_inputs(batch, t, h, p, n, g)
    outs, peer_outs = own_outputs(x, numbered(copies)), own_outputs(x, numbered(copies))
    mine, others = [*outs.values()], [*peer_outs.values()]
    ends = torch.arange(0, batch * t + 1, t, device="cuda", dtype=torch.int32)
    read, ones = slots[..., :1].expand(copies, batch, t).contiguous(), torch.ones_like(ends[1:])
    x_run, B_run, C_run = (u.flatten(0, 1) for u in (x, B, C))
    wide = dt.flatten(0, 1)[..., None].expand(-1, -1, p), A[:, None, None].expand(h, p, n)
    over = D[:, None].expand(h, p), bias[:, None].expand(h, p)

    def ours(i: int) -> None:
        kept = (places[i],) if t > 1 else ()
        launcher(pool, x, dt, A, B, C, *kept, D=D, dt_bias=bias, slots=first[i], out=mine[i])

    def theirs(i: int) -> None:
        index = {"state_batch_indices": first[i]}
        if t > 1:
            index = {"state_batch_indices": read[i], "dst_state_batch_indices": places[i]}
            index |= {"num_accepted_tokens": ones, "cu_seqlens": ends}
        update = peers["vllm"].selective_state_update
        update(pool, x_run, *wide, B_run, C_run, *over, dt_softplus=True, out=others[i].flatten(0, 1), **index)

    before = pool[: 1 + states].clone()
    ours(0)
    after = pool[: 1 + states].clone()
    pool[: 1 + states] = before
    if "vllm" in peers:
        theirs(0)
        same("vLLM's output", mine[0], others[0])
        same("vLLM's state", after, pool[: 1 + states])
    found = [Timing(model, f"{name}, ours", batch, rotated(ours, copies, outs, [pool]), bytes_)]
    if "vllm" in peers:
        found.append(Timing(model, f"{name}, vLLM", batch, rotated(theirs, copies, peer_outs, [pool]), bytes_))
    return found


def buffered(peers: Peers, model: str, batch: int) -> list[Timing]:
    """Standard decode from vLLM's ring, every position of a flush cycle, if its output and state equal those of our scan."""
    if "vllm_replay" not in peers:
        return []
    h, p, n, g = SSD[model]
    copies = copies_for(kernel("ssd_scan", "traffic_bytes")(batch, 1, h, p, n, g) // 2)
    rows = 1 + copies * batch
    pool, slots = (
        torch.randn(rows, h, p, n, device="cuda"),
        1 + torch.arange(copies * batch, device="cuda", dtype=torch.int32),
    )
    ring = {
        "x_cache": bf16(rows, h, PERIOD, p),
        "dt_cache": torch.zeros(rows, h, PERIOD, device="cuda"),
        "B_cache": bf16(rows, g, PERIOD, n),
        "bc_pre": torch.zeros(batch, g, PERIOD, device="cuda"),
    }
    x, dt, B, C = bf16(batch, h, p), bf16(batch, h), bf16(batch, g, n), bf16(batch, g, n)
    A, D, bias = -torch.rand(h, device="cuda"), torch.randn(h, device="cuda"), torch.randn(h, device="cuda")
    given = x, dt[..., None].expand(-1, -1, p), A[:, None, None].expand(h, p, n), B, C
    wide = {"D": D[:, None].expand(h, p), "dt_bias": bias[:, None].expand(h, p), "dt_softplus": True}
    outputs = own_outputs(x, [f"step {i // copies} of {PERIOD}, rows {i % copies}" for i in range(PERIOD * copies)])
    outs = [*outputs.values()]
    rows_of: dict[str, Any] = {"device": "cuda", "size": (batch,)}
    cursors = [
        {
            "write_pos": torch.full(fill_value=i, dtype=torch.int32, **rows_of),
            "is_flush": torch.full(fill_value=i == PERIOD - 1, dtype=torch.bool, **rows_of),
        }
        for i in range(PERIOD)
    ]
    update = peers["vllm_replay"].selective_state_update_replayssm_output_only

    def theirs(i: int) -> None:
        at = slots[(i % copies) * batch :][:batch]
        update(
            pool, *given, **wide, **ring, **cursors[i // copies], max_cache_len=PERIOD, state_batch_indices=at, out=outs[i]
        )

    expected, y = pool[1 : 1 + batch].clone(), x[:, None].clone()
    for step in range(PERIOD):
        kernel("ssd_scan")(expected, x[:, None], dt[:, None], A, B[:, None], C[:, None], D=D, dt_bias=bias, out=y)
        theirs(step * copies)
    same("vLLM's buffered output", y[:, 0], outs[(PERIOD - 1) * copies])
    same("vLLM's flushed state", expected, pool[1 : 1 + batch])
    us = graph_us([lambda i=i: theirs(i) for i in range(PERIOD * copies)], outputs, [pool], replays=7)  # type: ignore[misc]
    sizes = kernel("ssd_buffered_step", "traffic_bytes")(range(PERIOD), h, p, n, g, capacity=PERIOD)
    return [Timing(model, f"buffered L={PERIOD}, vLLM", batch, us, sizes * batch // PERIOD)]


def delta(peers: Peers, model: str, batch: int, t: int) -> list[Timing]:
    """A plain step (t = 1) or a fused scan: ours, then fla's, which writes a new state and leaves the old one."""
    (g, h, k, v), name = DELTA[model], "step" if t == 1 else f"scan of {t}"
    launcher, bytes_ = kernel("delta_scan"), kernel("delta_scan", "traffic_bytes")(batch, t, g, h, k, v)
    copies = max(2, min(copies_for(bytes_), ROOM // (4 * batch * h * k * v)))
    pool = torch.randn(copies, batch, h, k, v, device="cuda")
    q, key, value, gate, beta = delta_inputs(batch, t, g, h, k, v)
    outs = own_outputs(value, numbered(copies))
    mine, peer_outs, peer_states = [*outs.values()], dict[str, Tensor](), dict[int, Tensor]()

    def ours(i: int) -> None:
        launcher(pool[i], q, key, value, gate, beta, out=mine[i])

    def theirs(i: int) -> None:
        update = peers["fla"].fused_recurrent_gated_delta_rule
        options = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
        given = {"beta": beta, "initial_state": pool[i], **options}
        peer_outs[f"launch {i}"], peer_states[i] = update(q, key, value, gate, **given)

    if "fla" in peers:
        theirs(0)
    ours(0)
    if "fla" in peers:
        same("fla's output", mine[0], peer_outs["launch 0"])
        same("fla's state", pool[0], peer_states[0])
    found = [Timing(model, f"{name}, ours", batch, rotated(ours, copies, outs, [pool]), bytes_)]
    if "fla" in peers:
        found.append(Timing(model, f"{name}, fla", batch, rotated(theirs, copies, peer_outs, peer_states.values()), bytes_))
    return found


def cases() -> Iterator[tuple[str, int, int]]:
    """Models, batches and tokens."""
    for batch in BATCHES:
        yield from ((model, batch, t) for model in SSD for t in (1, WINDOW, BUFFERED))
        yield from ((model, batch, t) for model in DELTA for t in (1, *SCANS))


def timings(model: str, batch: int, t: int) -> list[Timing]:
    if t == BUFFERED:
        return buffered(peers(), model, batch)
    return (delta if model in DELTA else ssd)(peers(), model, batch, t)
