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
from ssmspec_ref.contract import Adapter, Capability, Limits, NumericContract, Storage, Subject
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

    # --- convolution ---

    def conv_step(self, M: Array, u: Array, params: Any) -> tuple[Array, Array]:
        pool, slots = self.held(M)
        y = conv_step(pool, *self.given(u), slots=slots, **self._taps(params))  # type: ignore[arg-type]
        return self.back(y, M, pool, slots)

    def conv_scan(self, M: Array, u: Array, params: Any) -> tuple[Array, Array]:
        return self._conv(M, u, None, params)

    def conv_masked(self, M: Array, u: Array, live: Array, params: Any) -> tuple[Array, Array]:
        return self._conv(M, u, live, params)

    def _conv(self, M: Array, u: Array, live: Array | None, params: Any) -> tuple[Array, Array]:
        pool, slots = self.held(M)
        y = conv_window(pool, *self.given(u), slots=slots, live=self.exact(live), **self._taps(params))  # type: ignore[arg-type]
        return self.back(y, M, pool, slots)

    def conv_tree(self, M: Array, u: Array, parents: Array, params: Any) -> Array:
        pool, slots = self.held(M)
        y = conv_tree(pool, *self.given(u), self.exact(parents), slots=slots, **self._taps(params))  # type: ignore[arg-type, call-arg]
        return self.back(y, M, pool, slots)[0]

    def conv_commit(self, M: Array, u: Array, advanced: Array) -> Array:
        pool, slots = self.held(M)
        conv_commit(pool, *self.given(u), advanced=self.exact(advanced), slots=slots)  # type: ignore[arg-type]
        return self.back(pool, M, pool, slots)[1]

    def conv_commit_path(self, M: Array, u: Array, path: Array) -> Array:
        pool, slots = self.held(M)
        conv_commit(pool, *self.given(u), path=self.exact(path), slots=slots)  # type: ignore[arg-type]
        return self.back(pool, M, pool, slots)[1]

    def _taps(self, params: Any) -> dict[str, Any]:
        return {"weight": self.exact(params.weight), "bias": self.exact(params.bias), "activation": params.activation}

    # --- recurrences ---

    def ssd(self, kernel: Callable[..., Tensor]) -> Callable[..., Any]:
        def scan(S: Array, window: Any, params: Any, live: Array | None = None) -> tuple[Array, Array]:
            pool, slots = self.held(S)
            y = kernel(
                pool, *self.ssd_inputs(window, params), slots=slots, live=self.exact(live), **self.ssd_rest(window, params)
            )
            return self.back(y, S, pool, slots)

        return scan

    def ssd_tree(self, S: Array, window: Any, ancestors: Array, params: Any) -> Array:
        pool, slots = self.held(S)
        inputs = (*self.ssd_inputs(window, params), self.exact(ancestors))
        y = ssd_tree_scan(pool, *inputs, slots=slots, **self.ssd_rest(window, params))
        return self.back(y, S, pool, slots)[0]

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

    def packed(self, kernel: Callable[..., Tensor], reads: Callable[..., Any]) -> Callable[..., Any]:
        """A kernel over packed sequences; its arrays have one row."""

        def scan(S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> tuple[Array, Array]:
            pool, slots = self.held(S)
            tokens = mapped(lambda a: a[0], run)
            inputs, rest = reads(tokens, params)
            y = kernel(pool, *inputs, self.exact(bounds), fresh=self.exact(fresh), slots=slots, **rest)
            return self.back(y[None], S, pool, slots)

        return scan

    def selective(self, S: Array, window: Any, params: Any, live: Array | None = None) -> tuple[Array, Array]:
        pool, slots = self.held(S)
        x, dt, B, C, z = self.given(window.x, window.dt, window.B, window.C, window.z)
        y = selective_scan(
            pool, x, dt, self.exact(params.A), B, C, D=self.exact(params.D), z=z,  # type: ignore[arg-type]
            dt_bias=self.exact(params.dt_bias), dt_softplus=params.dt_softplus, slots=slots, live=self.exact(live),
        )  # fmt: skip
        return self.back(y, S, pool, slots)

    def selective_tree(self, S: Array, window: Any, ancestors: Array, params: Any) -> Array:
        pool, slots = self.held(S)
        x, dt, B, C, z = self.given(window.x, window.dt, window.B, window.C, window.z)
        y = selective_tree(
            pool, x, dt, self.exact(params.A), B, C, nearest(self.exact(ancestors)), D=self.exact(params.D), z=z,  # type: ignore[arg-type]
            dt_bias=self.exact(params.dt_bias), dt_softplus=params.dt_softplus, slots=slots,
        )  # fmt: skip
        return self.back(y, S, pool, slots)[0]

    def delta_tree(self, kernel: Callable[..., Tensor]) -> Callable[..., Array]:
        def tree(S: Array, window: Any, ancestors: Array, params: Any) -> Array:
            pool, slots = self.held(S)
            inputs = (*self.delta_inputs(window), self.exact(ancestors))
            y = kernel(pool, *inputs, slots=slots, **self.delta_rest(params))
            return self.back(y, S, pool, slots)[0]

        return tree

    def delta(self, kernel: Callable[..., Tensor]) -> Callable[..., Any]:
        def scan(S: Array, window: Any, params: Any, live: Array | None = None) -> tuple[Array, Array]:
            pool, slots = self.held(S)
            inputs, how = self.delta_inputs(window), self.delta_rest(params)
            return self.back(kernel(pool, *inputs, slots=slots, live=self.exact(live), **how), S, pool, slots)

        return scan

    def delta_inputs(self, window: Any) -> list[Any]:
        return [*self.given(window.q, window.k, window.v), self.exact(window.g), self.exact(window.beta)]

    def delta_rest(self, params: Any) -> dict[str, Any]:
        return {"l2_norm": params.l2_norm, "scale": params.scale, "eps": params.eps}


def _step(scan: Callable[..., Any]) -> Callable[..., tuple[Array, Array]]:
    def step(S: Array, token: Any, params: Any) -> tuple[Array, Array]:
        y, S_next = scan(S, wide(token), params)
        return y[:, 0], S_next

    return step


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

        def may(run: Callable[..., Any], how: NumericContract = contract, longest: int | None = None) -> Capability:
            sizes = {"w": (2, 8)} | ({"t": (1, longest)} if longest else {})
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
        stepped, solved, walked = (kernels.delta(kernel) for kernel in (delta_scan, delta_chunked, kda_scan))
        subjects += [
            Subject("conv", {
                "conv.step": may(kernels.conv_step), "conv.scan": may(kernels.conv_scan, longest=64),
                "conv.scan_masked": may(kernels.conv_masked, longest=64), "conv.verify_tree": may(kernels.conv_tree),
                "conv.commit": may(kernels.conv_commit), "conv.commit_path": may(kernels.conv_commit_path),
            }),
            Subject("ssd_scan", {
                "ssd.step": may(_step(sequential)), "ssd.scan": may(sequential), "ssd.scan_masked": may(sequential),
            }),
            Subject("ssd_window", {
                "ssd.scan": may(fused, windows, 128), "ssd.scan_masked": may(fused, windows, 128),
                "ssd.verify_tree": may(kernels.ssd_tree, windows),
            }),
            Subject("selective_scan", {
                "selective.step": may(_step(kernels.selective)), "selective.scan": may(kernels.selective),
                "selective.scan_masked": may(kernels.selective),
                "selective.verify_tree": may(kernels.selective_tree, windows),
            }),
            Subject("delta_scan", {
                "delta.step": may(_step(stepped)), "delta.scan": may(stepped), "delta.scan_masked": may(stepped),
            }),
            Subject("delta_chunked", {
                "delta.scan": may(solved, windows, 32), "delta.scan_masked": may(solved, windows, 32),
                "delta.verify_tree": may(kernels.delta_tree(delta_tree), windows),
            }),
            Subject("kda_scan", {
                "delta.step": by_channel(may(_step(walked))), "delta.scan": by_channel(may(walked)),
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
