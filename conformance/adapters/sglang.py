"""SGLang: the Triton kernels of its Mamba-2 and gated-delta layers, run from its sources without the rest of the package.

Windows and trees are verified into buffers with a state per node (`sglang_windows`): a node reads the state of its parent.
The convolution walks up the parents, which it finds from first children and next siblings, and passes the parents on.
Accepted states are copied into the slots. A negative slot is padding. The delta rule's state is (value, key); the convolution
keeps w - 1 inputs. dt, A, D and the bias are expanded with strides of 0, as in SGLang's layer; there are no dt limits.

Trees have one root, and slots are always given: docs/found.md says why, and what the kernels do otherwise.
"""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from ssmspec_ref import tree
from ssmspec_ref.contract import Adapter, Capability, Limits, NumericContract, Subject
from ssmspec_ref.shapes import Ancestors, Array, Parents

from .peer_kernels import sglang_rings, sglang_windows, stub_modules
from .peer_kernels.formats import Capabilities, narrow
from .peer_kernels.layers import Layers
from .peer_kernels.pools import Pool, by_head, turned, with_oldest
from .peer_kernels.sources import Tensors, importable, module, one, placed, version_of

OPS, RULE = "sglang.kernels.ops.mamba", "sglang.kernels.ops.attention.fla"
LINEAR = "sglang.kernels.ops.attention.linear"
CHUNK = 16
RING = 5
"""Entries of the ring: fewer than the seven tokens of a case, so that it is flushed during the case."""
NODES = 64
STEP = Limits({"dt_limit": ("off",)}, reason="selective_state_update has no limits of dt")
SIZES = {"w": (2, 4), "t": (1, NODES)}
TAPS = Limits(sizes=SIZES, reason=f"filters of 2 to 4 taps, and up to {NODES} tokens, over which its loop is unrolled")
GATE = Limits({"gate": ("head",)}, reason="its gate is per head")
MIXED = Limits({"dt_limit": ("off",), "kind": ("mamba2", "delta")}, SIZES, "layers of Mamba-2 and of the gated delta rule")
ABSENT = {
    "": "only SGLang's Triton kernels of Mamba-2 and the gated delta rule are tested",
    **dict.fromkeys(("conv", "ssd", "delta"), "no kernel for it, or tested as another subject"),
}


class Kernels(Layers):
    """The kernels on one device, and how to call them for a batch, with activations and states in the given formats."""

    def __init__(self, device: str, activations: str = "fp32", state: str = "fp32") -> None:
        self.tensor = Tensors(device, activations, state)
        self.update = module(f"{OPS}.triton_ops.mamba_ssm").selective_state_update
        self.chunks = module(f"{OPS}.triton_ops.ssd_combined").mamba_chunk_scan_combined
        self.conv_update = module(f"{OPS}.causal_conv1d_triton").causal_conv1d_update
        self.recurrent = module(f"{RULE}.fused_recurrent").fused_recurrent_gated_delta_rule_update
        self.ring = module(f"{LINEAR}.fused_recurrent_linear_replayssm").fused_recurrent_linear_replayssm_decode
        spec = module(f"{LINEAR}.gdn_replayssm_spec_decode")
        self.window_ring, self.advance = spec.gdn_replayssm_spec_decode, spec.commit_gdn_replayssm_spec
        self.scatter = module(f"{OPS}.mamba_state_scatter_triton").fused_mamba_state_scatter_with_mask

    # --- recurrences: `more` says whether node states are kept, and gives the parents ---

    def ssd(self, pool: Pool, window: Any, params: Any, **more: Any) -> Any:
        x, dt, B, C, z = map(self.tensor.active, (window.x, window.dt, window.B, window.C, window.z))
        given = {"dt": dt[..., None].expand(x.shape), "B": B, "C": C, "z": z, "dt_softplus": params.dt_softplus}
        out = self.tensor.torch.full_like(x, float("nan"))
        wide = by_head(self.tensor, params, x.shape[-1], B.shape[-1])
        self.update(pool.states, x, **given, **wide, out=out, state_batch_indices=pool.index, **more)
        return out

    def delta(self, pool: Pool, window: Any, params: Any, **more: Any) -> Any:
        q, k, v, beta = map(self.tensor.active, (window.q, window.k, window.v, window.beta))
        given = q, k, v, self.tensor(window.g), beta
        how = {"scale": params.scale, "use_qk_l2norm_in_kernel": params.l2_norm}
        return self.recurrent(*given, initial_state_source=pool.states, initial_state_indices=pool.index, **how, **more)

    def kept(self, rows: int, nodes: int, state: Any, parents: Any) -> dict[str, Any]:
        """A buffer for the state of every node, in the format of the slots and filled with NaN; the slots are not written."""
        torch, device = self.tensor.torch, self.tensor.device
        return {
            "disable_state_update": True,
            "intermediate_states_buffer": torch.full(
                (rows, nodes, *state), float("nan"), dtype=self.tensor.state, device=device
            ),
            "intermediate_state_indices": torch.arange(rows, device=device, dtype=torch.int32),
            "cache_steps": nodes,
            "retrieve_parent_token": parents,
        }

    def ssd_scan(self, S: Array, window: Any, params: Any) -> tuple[Array, ...]:
        pool = Pool(self.tensor, S)
        return self.tensor.back(self.ssd(pool, window, params), pool.rows())

    def delta_scan(self, S: Array, window: Any, params: Any) -> tuple[Array, ...]:
        pool = Pool(self.tensor, turned(S))
        y, S_next = self.tensor.back(self.delta(pool, window, params), pool.rows())
        return y, turned(S_next)

    def ssd_tree(self, S: Array, window: Any, ancestors: Ancestors, params: Any) -> Array:
        return self._tree(self.ssd, S, window, ancestors, params)

    def delta_tree(self, S: Array, window: Any, ancestors: Ancestors, params: Any) -> Array:
        return self._tree(self.delta, turned(S), window, ancestors, params)

    def _tree(self, run: Any, S: Array, window: Any, ancestors: Ancestors, params: Any) -> Array:
        pool, parents = Pool(self.tensor, S), self.tensor(tree.parents(ancestors).clip(0)).int()
        more = self.kept(len(S), ancestors.shape[1], S.shape[1:], parents)
        y: Array = self.tensor.back(run(pool, window, params, **more))[0]
        return y

    # --- chunks ---

    def chunked(self, states: Any, run: Any, bounds: list[int], params: Any) -> tuple[Any, Any]:
        """Chunks lie on a grid over the packed run; a chunk of several sequences is listed for each, with its offset."""
        tensor, torch = self.tensor, self.tensor.torch
        pieces = [(at // CHUNK, at % CHUNK) for at in sorted({*range(0, bounds[-1], CHUNK), *bounds[:-1]})]
        owner = [sequence for sequence, (begin, end) in enumerate(pairwise(bounds)) for _ in range(end - begin)]
        x, dt, B, C, z = (None if a is None else tensor(a)[None] for a in (run.x, run.dt, run.B, run.C, run.z))
        A, D, bias = map(tensor, (params.A, params.D, params.dt_bias))
        index = partial(torch.tensor, dtype=torch.int32, device=tensor.device)
        out = torch.full_like(x, float("nan"))
        S_next = self.chunks(
            x, dt, A, B, C, CHUNK, D=D, z=z, dt_bias=bias, initial_states=states, seq_idx=index([owner]),
            chunk_indices=index([chunk for chunk, _ in pieces]), chunk_offsets=index([offset for _, offset in pieces]),
            cu_seqlens=index(bounds), dt_softplus=params.dt_softplus, dt_limit=params.dt_limit, out=out,
            return_varlen_states=True, state_dtype=torch.float32,
        )  # fmt: skip
        return out[0], S_next

    # --- convolution ---

    def conv_scan(self, M: Array, u: Array, params: Any) -> tuple[Array, ...]:
        pool, x = Pool(self.tensor, M[:, :, 1:]), self.tensor(u).transpose(1, 2)
        y = self.conv_update(x, pool.states, **self.conv_rest(params), conv_state_indices=pool.index)
        return self.tensor.back(y.transpose(1, 2), with_oldest(self.tensor(M), x, pool.rows()))

    def conv_tree(self, M: Array, u: Array, parents: Parents, params: Any) -> Array:
        pool = Pool(self.tensor, M[:, :, 1:])
        y: Array = self.tensor.back(self.conv(pool, self.tensor(u), parents, params, self.windows(pool, u.shape[1])))[0]
        return y

    def windows(self, pool: Pool, nodes: int) -> dict[str, Any]:
        """A buffer for the window after every node, filled with NaN."""
        torch, rows = self.tensor.torch, len(pool.slots)
        return {
            "intermediate_conv_window": torch.full(
                (rows, nodes, *pool.states.shape[1:]), float("nan"), device=self.tensor.device
            ),
            "intermediate_state_indices": torch.arange(rows, device=self.tensor.device, dtype=torch.int32),
        }

    def conv(self, pool: Pool, u: Any, parents: Parents | None, params: Any, more: dict[str, Any]) -> Any:
        """The outputs (b, t, c); for a tree, the kernel writes the parents to `retrieve_parent_token`."""
        if parents is not None:
            names = ("retrieve_next_token", "retrieve_next_sibling")
            more |= {name: self.tensor(links).int() for name, links in zip(names, sglang_windows.links(parents), strict=True)}
            more["retrieve_parent_token"] = self.tensor.torch.full_like(more["retrieve_next_token"], -9)
        y = self.conv_update(u.transpose(1, 2), pool.states, **self.conv_rest(params), conv_state_indices=pool.index, **more)
        return y.transpose(1, 2)


def recurrent(kernels: Kernels, rule: NumericContract) -> Capabilities:
    """The recurrent kernels. A node of a tree reads the state of its parent from the buffer, in the format of the slots."""
    windows = partial(partial, sglang_windows.Snapshots, kernels)
    nodes, state = replace(rule, stored_every_token=rule.state != "fp32"), replace(rule, softplus="log")
    return {
        "selective_state_update": {
            "ssd.step": Capability(one(kernels.ssd_scan), state, STEP),
            "ssd.verify_tree": Capability(kernels.ssd_tree, replace(nodes, softplus="log"), STEP),
            "ssd.verify_snapshots": Capability(windows("ssd"), state, STEP),
        },
        "fused_recurrent_gated_delta_rule_update": {
            "delta.step": Capability(one(kernels.delta_scan), rule, GATE),
            "delta.scan": Capability(kernels.delta_scan, rule, GATE),
            "delta.verify_tree": Capability(kernels.delta_tree, nodes, GATE),
            "delta.verify_snapshots": Capability(windows("delta"), rule, GATE),
        },
    }


def subjects(kernels: Kernels, compiled: bool) -> tuple[Subject, ...]:
    rule = NumericContract(exp="ex2" if compiled else "libm")
    state = replace(rule, softplus="log")
    chunks = replace(state, order="chunked", chunk=CHUNK, dot="tf32", truncates=compiled)
    at_once = replace(rule, order="output_only", dot="tf32", truncates=compiled)

    def ring(channels: bool, gate: str) -> Capability:
        limits = Limits({"gate": (gate,), "beta": ("one",)}, {"k": (16, 128)}, "keys of 16 channels and more, beta a sigmoid")
        return Capability(partial(sglang_rings.Ring, kernels, RING, channels), at_once, limits)

    sizes = {"k": (16, 128), "t": (1, sglang_rings.SPARE)}
    drafted = Limits(
        {"gate": ("head",), "beta": ("one",)}, sizes, "keys of 16 channels and more, beta a sigmoid, windows of 4"
    )
    layer = Capability(partial(sglang_windows.Layer, kernels), state, MIXED)
    found = recurrent(kernels, rule)
    found["selective_state_update"]["ssd.scan"] = Capability(kernels.ssd_scan, state, STEP)
    found |= {
        "fused_recurrent_linear_replayssm_decode": {"delta.buffered_step": ring(False, "head")},
        "fused_recurrent_linear_replayssm_decode, KDA": {"delta.buffered_step": ring(True, "channel")},
        "gdn_replayssm_spec_decode": {
            "delta.buffered_verify": Capability(partial(sglang_rings.Windows, kernels), at_once, drafted)
        },
        "mamba_chunk_scan_combined": {
            "ssd.scan": Capability(kernels.ssd_chunks, chunks),
            "ssd.scan_packed": Capability(kernels.ssd_packed, chunks),
        },
        "causal_conv1d_update": {
            "conv.step": Capability(kernels.conv_step, rule, TAPS),
            "conv.scan": Capability(kernels.conv_scan, rule, TAPS),
            "conv.verify_tree": Capability(kernels.conv_tree, rule, TAPS),
        },
        "a layer's speculative decoding": {"speculate.chain": layer, "speculate.tree": layer},
    }
    return tuple(Subject(name, capabilities, ABSENT) for name, capabilities in found.items())


def adapter(device: str = "cpu") -> Adapter:
    """The adapter of the SGLang sources on the path. Raises: ImportError, Unsupported."""
    placed(device)
    stand_in(device)
    kernels = Kernels(device)
    if device == "cpu":
        module("conformance.adapters.peer_kernels.jitted").bind(f"{RULE}.fused_recurrent", "exp")
    homepage = "https://github.com/sgl-project/sglang/issues"
    found = (
        *subjects(kernels, device != "cpu"),
        *narrow(
            NumericContract(exp="libm" if device == "cpu" else "ex2"),
            lambda contract: recurrent(Kernels(device, contract.io, contract.state), contract),
            ABSENT,
        ),
    )
    return Adapter("sglang", version_of("sglang"), found, homepage)


def stand_in(device: str) -> None:
    """Install stubs for the packages around the kernels and the names that the kernels use."""
    import torch

    importable(f"{OPS}.triton_ops", "sglang.kernels.ops.memory", RULE, LINEAR)
    release = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    hopper = stub_modules.capability(device)[0] >= 9
    for package in ("sglang.kernels.jit", "sglang.srt"):
        stub_modules.module(package)
    stub_modules.module("sglang.srt.utils", is_gfx95_supported=lambda: False)
    stub_modules.module("sglang.kernels.jit.utils", is_arch_support_pdl=lambda: hopper)
    stub_modules.module(
        "sglang.srt.utils.common", torch_release=release, get_device_core_count=stub_modules.unused("get_device_core_count")
    )
