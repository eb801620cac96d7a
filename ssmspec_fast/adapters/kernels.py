"""The Triton kernels for the suite: `ssmspec conform run --adapter ssmspec_fast.adapters.kernels:adapter`.

With `--device cuda` the compiled kernels are tested; with `--device interpreter` Triton's interpreter, on any machine.
A subject is a set of kernels; each is tested with the state and the activations stored as its contract says. States are in
a pool with slots out of order, so that kernels are called as an engine calls them.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor

from ssmspec_fast.adapters.kernel_parts import acceptance, attention, coded, kda, mamba3, shortconv
from ssmspec_fast.adapters.kernel_parts import windows as decoding
from ssmspec_fast.adapters.tensors import POOLS, exact, held, is_pool, mapped, nearest, wide
from ssmspec_kernels.contract import CONTRACT, of_products
from ssmspec_kernels.conv.conv_commit import conv_commit
from ssmspec_kernels.conv.conv_step import conv_step
from ssmspec_kernels.conv.conv_tree import conv_tree
from ssmspec_kernels.conv.conv_window import conv_window
from ssmspec_kernels.delta.delta_chunk_scan import delta_chunk_scan, tile
from ssmspec_kernels.delta.delta_chunked import delta_chunked
from ssmspec_kernels.delta.delta_scan import delta_scan
from ssmspec_kernels.delta.delta_tree import delta_tree
from ssmspec_kernels.kda.kda_scan import kda_scan
from ssmspec_kernels.kda.kda_tree import kda_tree
from ssmspec_kernels.selective.selective_scan import selective_scan
from ssmspec_kernels.selective.selective_tree import selective_tree
from ssmspec_kernels.ssd.ssd_chunk_scan import ssd_chunk_scan
from ssmspec_kernels.ssd.ssd_scan import ssd_scan
from ssmspec_kernels.ssd.ssd_tree_scan import ssd_tree_scan
from ssmspec_kernels.ssd.ssd_window import ssd_window
from ssmspec_ref.contract import Adapter, Capability, Graph, Launch, Limits, NumericContract, Storage, Subject
from ssmspec_ref.errors import Unsupported
from ssmspec_ref.shapes import Array

from ..device import check_device

DTYPES: dict[Storage, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FORMATS: tuple[tuple[Storage, Storage], ...] = (("fp32", "fp32"), ("fp32", "bf16"), ("bf16", "bf16"))
"""Storage of the state, storage of the activations."""
INTERPRETED: tuple[tuple[Storage, Storage], ...] = (("fp32", "bf16"),)
"""In the interpreter, where one case takes a second, only the format that engines use; the kernels' own tests, and runs on a
GPU, cover the others."""


@dataclass(frozen=True)
class Kernels:
    """The operations on one device, with the state and the activations stored in two formats."""

    device: str
    state: torch.dtype
    io: torch.dtype

    def held(self, S: Any) -> tuple[Tensor, Tensor]:
        """The given pool and its slots; or one with the rows of S in descending slots, and the slot of each row.

        Slot 0 is in use, and NaN lies between.
        """
        pool, slots = held(S, self.device, self.state)
        return pool, slots.int()

    def given(self, *arrays: Array | None) -> list[Tensor | None]:
        return [None if a is None else torch.tensor(a, device=self.device).to(self.io) for a in arrays]

    def exact(self, array: Array | None) -> Any:
        """Parameters, masks and indices unchanged; floats in fp32."""
        return exact(array, self.device)

    def back(self, y: Tensor, S: Any, pool: Tensor, slots: Tensor) -> tuple[Array, Array]:
        """The outputs, and the new states; the whole pool, if S is one."""
        left = pool if is_pool(S) else pool[slots.long()]
        return y.double().cpu().numpy(), left.double().cpu().numpy()

    def launch(self, kernel: Callable[..., Any], S: Any, *given: Any, **named: Any) -> Launch:
        """A kernel over the states of a case, which returns the outputs and the new states."""
        pool, slots = self.held(S)
        inputs = pool, slots, given, named
        return Launch(inputs, lambda: kernel(pool, *given, slots=slots, **named), lambda y: self.back(y, S, pool, slots))

    # --- convolution ---

    def conv_step(self, M: Array, u: Array, params: Any) -> Launch:
        return self.launch(conv_step, M, *self.given(u), **self._taps(params))

    def conv_scan(self, M: Array, u: Array, params: Any) -> Launch:
        return self._conv(M, u, None, params)

    def conv_masked(self, M: Array, u: Array, live: Array, params: Any) -> Launch:
        return self._conv(M, u, live, params)

    def _conv(self, M: Array, u: Array, live: Array | None, params: Any) -> Launch:
        return self.launch(conv_window, M, *self.given(u), live=self.exact(live), **self._taps(params))

    def conv_tree(self, M: Array, u: Array, parents: Array, params: Any) -> Launch:
        return self.launch(conv_tree, M, *self.given(u), self.exact(parents), **self._taps(params)).then(outputs_only)

    def conv_commit(self, M: Array, u: Array, advanced: Array) -> Launch:
        return self._committed(M, u, advanced=self.exact(advanced))

    def conv_commit_path(self, M: Array, u: Array, path: Array) -> Launch:
        return self._committed(M, u, path=self.exact(path))

    def _committed(self, M: Array, u: Array, **accepted: Any) -> Launch:
        def commit(pool: Tensor, u: Tensor, **rest: Any) -> Tensor:
            conv_commit(pool, u, **rest)
            return pool

        return self.launch(commit, M, *self.given(u), **accepted).then(lambda came: came[1])

    def _taps(self, params: Any) -> dict[str, Any]:
        return {"weight": self.exact(params.weight), "bias": self.exact(params.bias), "activation": params.activation}

    # --- recurrences ---

    def ssd(self, kernel: Callable[..., Tensor]) -> Graph:
        def scan(S: Array, window: Any, params: Any, live: Array | None = None) -> Launch:
            inputs, rest = self.ssd_reads(window, params)
            return self.launch(kernel, S, *inputs, live=self.exact(live), **rest)

        return Graph(scan)

    def ssd_tree(self, S: Array, window: Any, ancestors: Array, params: Any) -> Launch:
        inputs, rest = self.ssd_reads(window, params)
        return self.launch(ssd_tree_scan, S, *inputs, self.exact(ancestors), **rest).then(outputs_only)

    def ssd_inputs(self, window: Any, params: Any) -> list[Any]:
        x, dt, B, C = self.given(window.x, window.dt, window.B, window.C)
        return [x, dt, self.exact(params.A), B, C]

    def ssd_rest(self, window: Any, params: Any) -> dict[str, Any]:
        return {
            "D": self.exact(params.D),
            "z": self.given(window.z)[0],
            "dt_bias": self.exact(params.dt_bias),
            "dt_softplus": params.dt_softplus,
            "dt_limit": params.dt_limit,
        }

    def ssd_reads(self, window: Any, params: Any) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments of the SSD kernels."""
        return self.ssd_inputs(window, params), self.ssd_rest(window, params)

    def delta_reads(self, window: Any, params: Any) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments of the delta rule's kernels."""
        return self.delta_inputs(window), self.delta_rest(params)

    def packed(self, kernel: Callable[..., Tensor], reads: Callable[..., Any]) -> Graph:
        """A kernel over packed sequences; its arrays have one row."""

        def scan(S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> Launch:
            inputs, rest = reads(mapped(lambda a: a[0], run), params)
            made = self.launch(kernel, S, *inputs, self.exact(bounds), fresh=self.exact(fresh), **rest)
            return made.then(lambda came: (came[0][None], came[1]))

        return Graph(scan)

    def selective(self, S: Array, window: Any, params: Any, live: Array | None = None) -> Launch:
        inputs, rest = self.selective_reads(window, params)
        return self.launch(selective_scan, S, *inputs, live=self.exact(live), **rest)

    def selective_tree(self, S: Array, window: Any, ancestors: Array, params: Any) -> Launch:
        inputs, rest = self.selective_reads(window, params)
        return self.launch(selective_tree, S, *inputs, nearest(self.exact(ancestors)), **rest).then(outputs_only)

    def selective_reads(self, window: Any, params: Any) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments of Mamba-1's kernels."""
        x, dt, B, C, z = self.given(window.x, window.dt, window.B, window.C, window.z)
        how = {"D": self.exact(params.D), "z": z, "dt_bias": self.exact(params.dt_bias), "dt_softplus": params.dt_softplus}
        return [x, dt, self.exact(params.A), B, C], how

    def delta_tree(self, kernel: Callable[..., Tensor]) -> Graph:
        def tree(S: Array, window: Any, ancestors: Array, params: Any) -> Launch:
            inputs, rest = self.delta_reads(window, params)
            return self.launch(kernel, S, *inputs, self.exact(ancestors), **rest).then(outputs_only)

        return Graph(tree)

    def delta(self, kernel: Callable[..., Tensor]) -> Graph:
        def scan(S: Array, window: Any, params: Any, live: Array | None = None) -> Launch:
            inputs, rest = self.delta_reads(window, params)
            return self.launch(kernel, S, *inputs, live=self.exact(live), **rest)

        return Graph(scan)

    def delta_inputs(self, window: Any) -> list[Any]:
        return [*self.given(window.q, window.k, window.v), self.exact(window.g), self.exact(window.beta)]

    def delta_rest(self, params: Any) -> dict[str, Any]:
        return {"l2_norm": params.l2_norm, "scale": params.scale, "eps": params.eps}


def outputs_only(came: tuple[Array, Array]) -> Array:
    """The outputs of a tree, whose states stay as they are."""
    return came[0]


def stepped(scan: Callable[..., Launch]) -> Graph:
    """One token as a window of one."""

    def step(S: Array, token: Any, params: Any) -> Launch:
        return scan(S, wide(token), params).then(lambda came: (came[0][:, 0], came[1]))

    return Graph(step)


def adapter(device: str = "cuda") -> Adapter:
    """The kernels on a device. Raises: Unsupported for a device that kernels cannot run on."""
    if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise Unsupported("kernels do not run on a cpu; give --device cuda, or --device interpreter")
    check_device(device)
    subjects = []
    for state, io in FORMATS if device != "cpu" else INTERPRETED:
        kernels = Kernels(device, DTYPES[state], DTYPES[io])
        contract = replace(CONTRACT, state=state, io=io)
        windows = replace(contract, order="output_only")

        def may(prepare: Callable[..., Any], how: NumericContract = contract, longest: int | None = None) -> Capability:
            sizes = {"w": (2, 8)} | ({"t": (1, longest)} if longest else {})
            run = prepare if isinstance(prepare, Graph) else Graph(prepare)
            return Capability(run, how, Limits(POOLS, sizes, reason="what one launch takes"))

        def chunked(tokens: int, of: NumericContract = contract) -> NumericContract:
            return replace(of, order="chunked", chunk=tokens)

        scans: tuple[tuple[str, Any, Any, int, int], ...] = (  # tokens of a chunk, and with products in bf16
            ("ssd", ssd_chunk_scan, kernels.ssd_reads, 64, 64),
            ("delta", delta_chunk_scan, kernels.delta_reads, 32, tile("bf16", torch.device(device))[0]),
        )
        prompts = [
            Subject(f"{rule}_chunk_scan", {f"{rule}.scan_packed": may(kernels.packed(scan, reads), chunked(tokens))})
            for rule, scan, reads, tokens, _ in scans
        ]
        for rule, scan, reads, _, tokens in scans if io == "bf16" else ():  # the same kernels
            narrow = kernels.packed(partial(scan, products="bf16"), reads)
            run = may(narrow, of_products("bf16", chunked(tokens)))
            prompts.append(Subject(f"{rule}_chunk_scan in bf16", {f"{rule}.scan_packed": run}))
        by_channel = kda.by_channel
        sequential, fused = kernels.ssd(ssd_scan), kernels.ssd(ssd_window)
        one_by_one, solved, walked = (kernels.delta(kernel) for kernel in (delta_scan, delta_chunked, kda_scan))
        subjects += [
            Subject("conv", {
                "conv.step": may(kernels.conv_step), "conv.scan": may(kernels.conv_scan, longest=64),
                "conv.scan_masked": may(kernels.conv_masked, longest=64), "conv.verify_tree": may(kernels.conv_tree),
                "conv.commit": may(kernels.conv_commit), "conv.commit_path": may(kernels.conv_commit_path),
            }),
            Subject("ssd_scan", {
                "ssd.step": may(stepped(sequential.prepare)), "ssd.scan": may(sequential), "ssd.scan_masked": may(sequential),
            }),
            Subject("ssd_window", {
                "ssd.scan": may(fused, windows, 128), "ssd.scan_masked": may(fused, windows, 128),
                "ssd.verify_tree": may(kernels.ssd_tree, windows),
            }),
            Subject("selective_scan", {
                "selective.step": may(stepped(kernels.selective)), "selective.scan": may(kernels.selective),
                "selective.scan_masked": may(kernels.selective),
                "selective.verify_tree": may(kernels.selective_tree, windows),
            }),
            Subject("delta_scan", {
                "delta.step": may(stepped(one_by_one.prepare)), "delta.scan": may(one_by_one),
                "delta.scan_masked": may(one_by_one),
            }),
            Subject("delta_chunked", {
                "delta.scan": may(solved, windows, 32), "delta.scan_masked": may(solved, windows, 32),
                "delta.verify_tree": may(kernels.delta_tree(delta_tree), windows),
            }),
            Subject("kda_scan", {
                "delta.step": by_channel(may(stepped(walked.prepare))), "delta.scan": by_channel(may(walked)),
                "delta.scan_masked": by_channel(may(walked)),
            }),
            Subject("kda_tree", {"delta.verify_tree": by_channel(may(kernels.delta_tree(kda_tree), windows))}),
            *prompts,
            *(attention.subjects(device, DTYPES[io], contract) if state == "fp32" else ()),
            *decoding.subjects(kernels, contract),
            *kda.subjects(kernels, contract),
            *shortconv.subjects(kernels, contract),
            *mamba3.subjects(kernels, contract),
            *(coded.subjects(kernels, contract) if state == "fp32" else ()),
        ]  # fmt: skip
    subjects += acceptance.subjects(device, CONTRACT)
    return Adapter("ssmspec_kernels", f"triton {triton.__version__}", tuple(subjects))
