"""vLLM: the Triton kernels of its Mamba-2 and gated-delta layers, run from its sources without the rest of the package.

Every token of a window has a state, in a table of slots: a window reads the slot of the last accepted token and writes all of
its own slots (`vllm_windows`). Slot 0 is padding. The delta rule's state is (value, key); the convolution keeps w - 1 inputs,
followed by those of a window's drafts. dt, A, D and the bias are expanded with strides of 0, as in vLLM's layer; D and the
bias are required arguments, and a step has no dt limits.
"""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import log
from types import SimpleNamespace
from typing import Any

from ssmspec_ref.contract import Adapter, Capability, Limits, NumericContract, Subject
from ssmspec_ref.shapes import Array

from .peer_kernels import stub_modules, vllm_windows
from .peer_kernels.formats import Capabilities, narrow
from .peer_kernels.layers import Layers
from .peer_kernels.pools import Pool, by_head, ends, flat, turned, with_oldest
from .peer_kernels.sources import Tensors, importable, joined, module, one, placed, version_of

OPS, RULE = "vllm.model_executor.layers.mamba.ops", "vllm.third_party.flash_linear_attention.ops"
PADDING = 0
"""The padding slot; `vllm.v1.attention.backends.utils.NULL_BLOCK_ID`."""
CHUNK = 16
RING = 5
"""Entries of the ring: fewer than the seven tokens of a case, so that it is flushed during the case."""
HEADS = {"D": ("head", "channel"), "dt_bias": ("on",), "dt_limit": ("off",)}
STEP = Limits(HEADS, reason="selective_state_update always takes D and dt_bias, and has no limits of dt")
NO_LIMIT = Limits({"dt_limit": ("off",)}, reason="its step has no limits of dt")
TAPS = Limits(sizes={"w": (2, 4)}, reason="filters of 2 to 4 taps, which every kernel of its convolution takes")
GATE = Limits({"gate": ("head",)}, reason="its gate is per head")
CHANNELS = {"gate": ("channel",)}
SQUARE = Limits(CHANNELS, {"g": (3, 3), "h": (3, 3), "k": (16, 16), "v": (16, 16)}, "the output has the shape of k")
OBLONG = Limits(
    CHANNELS, dict.fromkeys("bghv", (1, 1)) | {"k": (2, 2)}, "more values than keys would be written past the output"
)
MIXED = Limits(HEADS | {"kind": ("mamba2", "delta")}, TAPS.sizes, "layers of Mamba-2 and of the gated delta rule")
ABSENT = {
    "": "only vLLM's Triton kernels of Mamba-2 and the gated delta rule are tested",
    "speculate.tree": "no kernel takes a tree",
    **dict.fromkeys(("conv", "ssd", "delta"), "no kernel for it, or tested as another subject"),
}


class Kernels(Layers):
    """The kernels on one device, and how to call them for a batch."""

    padding = PADDING

    def __init__(self, device: str, activations: str = "fp32", state: str = "fp32") -> None:
        self.tensor = Tensors(device, activations, state)
        ssm, conv = module(f"{OPS}.mamba_ssm"), module(f"{OPS}.causal_conv1d")
        self.update, self.conv_update, self.conv_fn = (
            ssm.selective_state_update,
            conv.causal_conv1d_update,
            conv.causal_conv1d_fn,
        )
        self.chunks = module(f"{OPS}.ssd_combined").mamba_chunk_scan_combined_varlen
        replay = module(f"{OPS}.selective_state_update_replayssm_output_only")
        self.replay = replay.selective_state_update_replayssm_output_only
        self.recurrent = module(f"{RULE}.fused_recurrent").fused_recurrent_gated_delta_rule
        self.kda = module(f"{RULE}.kda").fused_recurrent_kda

    # --- one token ---

    def step(self, S: Array, token: Any, params: Any) -> tuple[Array, ...]:
        pool = Pool(self.tensor, S, PADDING + 1)
        given = self.ssd(token, params)
        out = self.tensor.torch.full_like(given["x"], float("nan"))
        self.update(pool.states, **given, out=out, state_batch_indices=pool.index)
        return self.tensor.back(out, pool.rows())

    def ssd(self, tokens: Any, params: Any) -> dict[str, Any]:
        """Packed tokens in the form that the step takes."""
        x, dt, B, C, z = map(self.tensor.active, (tokens.x, tokens.dt, tokens.B, tokens.C, tokens.z))
        given = {"x": x, "dt": dt[..., None].expand(x.shape), "B": B, "C": C, "z": z, "dt_softplus": params.dt_softplus}
        return given | by_head(self.tensor, params, x.shape[-1], B.shape[-1])

    # --- windows: one slot per token ---

    def ssd_window(self, pool: Pool, accepted: Any, window: Any, params: Any) -> Any:
        b, t = window.dt.shape[:2]
        given = self.ssd(joined(window), params)
        out = self.tensor.torch.full_like(given["x"], float("nan"))
        places = {"state_batch_indices": pool.table, "num_accepted_tokens": accepted, "cu_seqlens": ends(self.tensor, b, t)}
        self.update(pool.states, **given, out=out, **places)
        return out.unflatten(0, (b, t))

    def delta_window(self, pool: Pool, accepted: Any, window: Any, params: Any) -> Any:
        return self._rule(self.recurrent, pool, window, params, num_accepted_tokens=accepted)

    def kda_window(self, pool: Pool, accepted: Any, window: Any, params: Any) -> Any:
        """As `delta_window`, but always from the first slot."""
        return self._rule(self.kda, pool, window, params)

    def _rule(self, kernel: Any, pool: Pool, window: Any, params: Any, **more: Any) -> Any:
        b, t = window.beta.shape[:2]
        q, k, v, beta = (flat(self.tensor.active(a))[None] for a in (window.q, window.k, window.v, window.beta))
        g = flat(self.tensor(window.g))[None]
        places = {"ssm_state_indices": pool.table, "cu_seqlens": ends(self.tensor, b, t)}
        how = {"scale": params.scale, "use_qk_l2norm_in_kernel": params.l2_norm}
        o, _ = kernel(q, k, v, g, beta, initial_state=pool.states, **places, **how, **more)
        return o[0].unflatten(0, (b, t))

    def ssd_scan(self, S: Array, window: Any, params: Any) -> tuple[Array, ...]:
        """A packed run as one window; the slot of its last token holds the final state."""
        return self._scan(self.ssd_window, S, window, params, window.dt.shape[1])

    def delta_scan(self, S: Array, window: Any, params: Any) -> tuple[Array, ...]:
        y, S_next = self._scan(self.delta_window, turned(S), window, params, window.beta.shape[1])
        return y, turned(S_next)

    def kda_scan(self, S: Array, window: Any, params: Any) -> tuple[Array, ...]:
        y, S_next = self._scan(self.kda_window, turned(S), window, params, window.beta.shape[1])
        return y, turned(S_next)

    def _scan(self, run: Any, S: Array, window: Any, params: Any, t: int) -> tuple[Array, ...]:
        pool = Pool(self.tensor, S, PADDING + 1, t)
        ones = self.tensor.torch.ones(len(S), dtype=self.tensor.torch.int32, device=self.tensor.device)
        y = run(pool, ones, window, params)
        return self.tensor.back(y, pool.at(t * ones - 1))

    # --- chunks ---

    def chunked(self, states: Any, run: Any, bounds: list[int], params: Any) -> tuple[Any, Any]:
        """Chunks start at the first token of every sequence."""
        tensor, torch = self.tensor, self.tensor.torch
        cuts, last = [0], list[int]()
        owner = list[int]()
        for sequence, (begin, end) in enumerate(pairwise(bounds)):
            inside = [*range(begin + CHUNK, end, CHUNK), end]
            cuts, owner = cuts + inside, owner + [sequence] * len(inside)
            last.append(len(owner) - 1)
        x, dt, B, C, z = map(tensor, (run.x, run.dt, run.B, run.C, run.z))
        out = torch.full_like(x, float("nan"))
        index = partial(torch.tensor, dtype=torch.int32, device=tensor.device)
        A, D, bias = map(tensor, (params.A, params.D, params.dt_bias))
        S_next = self.chunks(
            x, dt, A, B, C, CHUNK, index(bounds), index(cuts), index(last), index(owner), out,
            D=D, z=z, dt_bias=bias, initial_states=states, dt_softplus=params.dt_softplus, dt_limit=params.dt_limit,
            state_dtype=torch.float32,
        )  # fmt: skip
        return out, S_next

    # --- convolution ---

    def conv_scan(self, M: Array, u: Array, params: Any) -> tuple[Array, ...]:
        pool = Pool(self.tensor, M[:, :, 1:], PADDING + 1)
        x = self.tensor(u).transpose(1, 2).contiguous()
        y = self.conv_update(x.clone(), pool.states, **self.conv_rest(params), conv_state_indices=pool.index)
        return self.tensor.back(y.transpose(1, 2), with_oldest(self.tensor(M), x, pool.rows()))

    def conv_prefill(self, M: Array, u: Array, params: Any) -> tuple[Array, ...]:
        b, t = u.shape[:2]
        pool = Pool(self.tensor, M[:, :, 1:].swapaxes(1, 2), PADDING + 1)
        x = flat(self.tensor(u)).T
        y = self.conv_fn(
            x, conv_states=pool.states.transpose(1, 2), query_start_loc=ends(self.tensor, b, t), cache_indices=pool.index,
            has_initial_state=self.tensor.torch.ones(b, dtype=bool, device=self.tensor.device), **self.conv_rest(params),
        )  # fmt: skip
        M_next = with_oldest(self.tensor(M), self.tensor(u).transpose(1, 2), pool.rows().transpose(1, 2))
        return self.tensor.back(y.T.unflatten(0, (b, t)), M_next)


def recurrent(kernels: Kernels, rule: NumericContract) -> Capabilities:
    state, windows = replace(rule, exp="ex2", softplus="log"), partial(partial, vllm_windows.Snapshots, kernels)
    return {
        "selective_state_update": {
            "ssd.step": Capability(kernels.step, state, STEP),
            "ssd.verify_snapshots": Capability(windows("ssd"), state, STEP),
        },
        "fused_recurrent_gated_delta_rule": {
            "delta.step": Capability(one(kernels.delta_scan), rule, GATE),
            "delta.scan": Capability(kernels.delta_scan, rule, GATE),
            "delta.verify_snapshots": Capability(windows("delta"), rule, GATE),
        },
    }


def subjects(kernels: Kernels, compiled: bool) -> tuple[Subject, ...]:
    exp = "ex2" if compiled else "libm"
    rule = NumericContract(exp=exp)  # type: ignore[arg-type]
    state = NumericContract(exp="ex2", softplus="log")
    chunks = replace(rule, softplus="log", order="chunked", chunk=CHUNK, dot="tf32", truncates=compiled)
    ring = replace(rule, softplus="log", order="output_only", dot="tf32x3", truncates=compiled)
    found = recurrent(kernels, rule)
    found["selective_state_update"]["ssd.scan"] = Capability(kernels.ssd_scan, state, STEP)
    found |= {
        "fused_recurrent_kda": {
            "delta.step": Capability(one(kernels.kda_scan), rule, SQUARE),
            "delta.scan": Capability(kernels.kda_scan, rule, SQUARE),
        },
        "fused_recurrent_kda, one value to two keys": {"delta.step": Capability(one(kernels.kda_scan), rule, OBLONG)},
        "mamba_chunk_scan_combined_varlen": {
            "ssd.scan": Capability(kernels.ssd_chunks, chunks),
            "ssd.scan_packed": Capability(kernels.ssd_packed, chunks),
        },
        "selective_state_update_replayssm_output_only": {
            "ssd.buffered_step": Capability(partial(vllm_windows.Ring, kernels, RING), ring, NO_LIMIT),
        },
        "causal_conv1d_update": {
            "conv.step": Capability(kernels.conv_step, rule, TAPS),
            "conv.scan": Capability(kernels.conv_scan, rule, TAPS),
        },
        "a layer's speculative decoding": {
            "speculate.chain": Capability(partial(vllm_windows.Layer, kernels), state, MIXED),
        },
    }
    if compiled:
        found["causal_conv1d_fn"] = {"conv.scan": Capability(kernels.conv_prefill, rule, TAPS)}
    return tuple(Subject(name, capabilities, ABSENT) for name, capabilities in found.items())


def adapter(device: str = "cpu") -> Adapter:
    """The adapter of the vLLM sources on the path. Raises: ImportError, Unsupported."""
    placed(device)
    stand_in(device)
    kernels = Kernels(device)
    if device == "cpu":
        module("conformance.adapters.peer_kernels.jitted").bind(f"{RULE}.fused_recurrent", "exp")
    homepage = "https://github.com/vllm-project/vllm/issues"
    found = (
        *subjects(kernels, device != "cpu"),
        *narrow(
            NumericContract(exp="libm" if device == "cpu" else "ex2"),
            lambda contract: recurrent(Kernels(device, contract.io, contract.state), contract),
            ABSENT,
        ),
    )
    return Adapter("vllm", version_of("vllm"), found, homepage)


def stand_in(device: str) -> None:
    """Install stubs for the packages around the kernels and the names that the kernels use."""
    import triton
    import triton.language as tl
    from triton.language.extra import libdevice

    importable(OPS, RULE)
    major, minor = stub_modules.capability(device)
    platform = SimpleNamespace(
        **dict.fromkeys(("is_cpu", "is_rocm", "is_xpu"), lambda: False),
        is_cuda=lambda: device != "cpu",
        is_cuda_alike=lambda: device != "cpu",
        is_arch_support_pdl=lambda: major >= 9,
        is_device_capability=lambda wanted, **_: wanted in ((major, minor), 10 * major + minor),
        is_device_capability_family=lambda family, **_: family // 10 == major,
    )
    card = "cpu" if device == "cpu" else module("torch").cuda.get_device_name().replace(" ", "_")
    for package in ("vllm.utils", "vllm.v1", "vllm.v1.attention", "vllm.v1.attention.backends", "vllm._custom_ops"):
        stub_modules.module(package)
    stub_modules.module("vllm.envs", VLLM_TUNED_CONFIG_FOLDER=None)
    stub_modules.module("vllm.logger", init_logger=lambda _: stub_modules.silent())
    stub_modules.module("vllm.platforms", current_platform=platform)
    stub_modules.module("vllm.triton_utils", HAS_TRITON=True, tl=tl, triton=triton, tldevice=libdevice)
    stub_modules.module("vllm.utils.math_utils", cdiv=triton.cdiv, next_power_of_2=triton.next_power_of_2, RCP_LN2=1 / log(2))
    for home, name in (("gpu_sync_debug", "gpu_sync_allowed"), ("torch_utils", "async_tensor_h2d")):
        stub_modules.module(f"vllm.utils.{home}", **{name: stub_modules.unused(name)})
    stub_modules.module("vllm.model_executor.custom_op", CustomOp=NoOp)
    stub_modules.module("vllm.utils.platform_utils", get_device_name_as_file_name=lambda: card)
    stub_modules.module("vllm.v1.attention.backends.utils", NULL_BLOCK_ID=PADDING, PAD_SLOT_ID=-1)


class NoOp:
    """A base class of layers; no layer is created here."""

    @staticmethod
    def register(_: str) -> Any:
        return lambda op: op
