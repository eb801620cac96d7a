"""The Triton kernels for the suite: `ssmspec conform run --adapter ssmspec_fast.adapters.kernels:adapter`.

With `--device cuda` the compiled kernels are tested; with `--device interpreter` Triton's interpreter, on any machine.
A subject is a set of kernels; each is tested with the state and the activations stored as its contract says. States are in
a pool with slots out of order, so that kernels are called as an engine calls them.

What a launcher is called with follows from its row: activations in their format, everything else exact. Which operations it
has follows from its oracle (`ssmspec_kernels.oracles`).
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
from torch import Tensor

from ssmspec_fast.adapters.kernel_parts import acceptance, attention, coded
from ssmspec_fast.adapters.kernel_parts import windows as decoding
from ssmspec_fast.adapters.tensors import POOLS, exact, held, is_pool, mapped, nearest, spelled, wide
from ssmspec_kernels.contract import CONTRACT, of_products
from ssmspec_kernels.conv.conv_commit import conv_commit
from ssmspec_kernels.conv.conv_step import conv_step
from ssmspec_kernels.conv.conv_taps import WIDEST
from ssmspec_kernels.conv.conv_tree import MOST, conv_tree
from ssmspec_kernels.conv.conv_window import conv_window
from ssmspec_kernels.delta.delta_chunk_scan import delta_chunk_scan, tile
from ssmspec_kernels.delta.delta_chunked import delta_chunked
from ssmspec_kernels.delta.delta_scan import delta_scan
from ssmspec_kernels.delta.delta_tree import delta_tree
from ssmspec_kernels.kda.kda_scan import kda_scan
from ssmspec_kernels.kda.kda_tree import kda_tree
from ssmspec_kernels.mamba3.mamba3_packed import mamba3_packed
from ssmspec_kernels.mamba3.mamba3_scan import mamba3_scan
from ssmspec_kernels.mamba3.mamba3_tree import LARGEST, mamba3_tree
from ssmspec_kernels.oracles import ORACLES
from ssmspec_kernels.row import row_of, taken, takes
from ssmspec_kernels.selective.selective_scan import selective_scan
from ssmspec_kernels.selective.selective_tree import selective_tree
from ssmspec_kernels.shortconv.shortconv_packed import shortconv_packed
from ssmspec_kernels.shortconv.shortconv_scan import shortconv_scan
from ssmspec_kernels.shortconv.shortconv_tree import shortconv_tree
from ssmspec_kernels.ssd.ssd_chunk_scan import ssd_chunk_scan
from ssmspec_kernels.ssd.ssd_scan import ssd_scan
from ssmspec_kernels.ssd.ssd_tree_scan import ssd_tree_scan
from ssmspec_kernels.ssd.ssd_window import ssd_window
from ssmspec_ref.contract import Adapter, Capability, Graph, Launch, Limits, NumericContract, Storage, Subject
from ssmspec_ref.errors import Unsupported
from ssmspec_ref.shapes import Array

from ..device import check_device

Launcher = Callable[..., Any]
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

    def exact(self, array: Array | None) -> Any:
        """Parameters, masks and indices unchanged; floats in fp32."""
        return exact(array, self.device)

    def back(self, y: Tensor | None, S: Any, pool: Tensor, slots: Tensor) -> tuple[Any, Array]:
        """The outputs, and the new states; the whole pool, if S is one."""
        left = pool if is_pool(S) else pool[slots.long()]
        return None if y is None else y.double().cpu().numpy(), left.double().cpu().numpy()

    def arguments(self, launcher: Launcher, *records: Any, **named: Any) -> dict[str, Any]:
        """What a launcher takes of the suite's records, and `named`: by its row activations as they are stored, other arrays
        exact."""
        stored = {entry.name for entry in row_of(launcher) if entry.argument.size == "io"}

        def placed(name: str, value: Any) -> Any:
            if isinstance(value, Tensor) or not hasattr(value, "shape"):
                return value
            return torch.tensor(value, device=self.device).to(self.io) if name in stored else self.exact(value)

        return {n: placed(n, value) for n, value in taken(launcher, *map(spelled, records), **named).items()}

    def launch(self, launcher: Launcher, S: Any, *records: Any, **named: Any) -> Launch:
        """A launcher over the states of a case, which returns the outputs and the new states."""
        pool, slots = self.held(S)
        given = self.arguments(launcher, *records, **named) | {"slots": slots}
        return Launch((pool, given), lambda: launcher(pool, **given), lambda y: self.back(y, S, pool, slots))

    # --- the operations ---

    def scan(self, launcher: Launcher) -> Graph:
        return Graph(lambda S, window, params, live=None: self.launch(launcher, S, window, params, live=live))

    def step(self, launcher: Launcher) -> Graph:
        """One token as a window of one."""

        def step(S: Array, token: Any, params: Any) -> Launch:
            return self.launch(launcher, S, wide(token), params).then(lambda came: (came[0][:, 0], came[1]))

        return Graph(step)

    def tree(self, launcher: Launcher) -> Graph:
        def tree(S: Array, window: Any, ancestors: Array, params: Any) -> Launch:
            seen = self.exact(ancestors)
            shape = {"ancestors": seen} if "ancestors" in takes(launcher) else {"parents": nearest(seen)}
            return self.launch(launcher, S, window, params, **shape).then(outputs_only)

        return Graph(tree)

    def packed(self, launcher: Launcher, **how: Any) -> Graph:
        """A kernel over packed sequences; its arrays have one row."""

        def scan(S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> Launch:
            rows = {"bounds": bounds, "fresh": fresh}
            made = self.launch(launcher, S, mapped(lambda a: a[0], run), params, **rows, **how)
            return made.then(lambda came: (came[0][None], came[1]))

        return Graph(scan)

    def of(self, launcher: Launcher) -> dict[str, Graph]:
        """The operations of a launcher that take one window."""
        made = {
            "step": self.step,
            "scan": self.scan,
            "scan_masked": self.scan,
            "scan_packed": self.packed,
            "verify_tree": self.tree,
        }
        return {name: made[name.partition(".")[2]](launcher) for name in ORACLES[launcher.__name__].judged}

    def conv(self) -> dict[str, Callable[..., Any]]:
        """The convolution, whose inputs are no record."""

        def entered(M: Array, u: Array, **accepted: Array) -> Launch:
            return self.launch(conv_commit, M, u=u, **accepted).then(lambda came: came[1])

        def tree(M: Array, u: Array, parents: Array, params: Any) -> Launch:
            return self.launch(conv_tree, M, params, u=u, parents=parents).then(outputs_only)

        return {
            "conv.step": lambda M, u, params: self.launch(conv_step, M, params, u=u),
            "conv.scan": lambda M, u, params: self.launch(conv_window, M, params, u=u),
            "conv.scan_masked": lambda M, u, live, params: self.launch(conv_window, M, params, u=u, live=live),
            "conv.verify_tree": tree,
            "conv.commit": lambda M, u, advanced: entered(M, u, advanced=advanced),
            "conv.commit_path": lambda M, u, path: entered(M, u, path=path),
        }


def outputs_only(came: tuple[Array, Array]) -> Array:
    """The outputs of a tree, whose states stay as they are."""
    return came[0]


TAPS = {"w": (2, 8)}
COLUMNS = {"q": (1, WIDEST - 1)}


def windows(kernels: Kernels, contract: NumericContract) -> dict[str, list[Subject]]:
    """The launchers that take one window, by kind; several in one subject where they belong together."""
    at_once = replace(contract, order="output_only")

    def limits(sizes: dict[str, tuple[int, int]], longest: int) -> Limits:
        return Limits(POOLS, sizes | ({"t": (1, longest)} if longest else {}), reason="what one launch takes")

    def may(
        launcher: Launcher, how: NumericContract = contract, longest: int = 0, sizes: dict[str, tuple[int, int]] = TAPS
    ) -> dict[str, Capability]:
        return {name: Capability(run, how, limits(sizes, longest)) for name, run in kernels.of(launcher).items()}

    def subject(launcher: Launcher, *more: dict[str, Capability], **how: Any) -> Subject:
        found = may(launcher, **how)
        return Subject(launcher.__name__, {name: run for each in (found, *more) for name, run in each.items()})

    def channel(made: Subject) -> Subject:
        return replace(made, capabilities={name: decoding.by_channel(run) for name, run in made.capabilities.items()})

    long = dict.fromkeys(("conv.scan", "conv.scan_masked"), 64)
    conv = {name: Capability(Graph(run), contract, limits(TAPS, long.get(name, 0))) for name, run in kernels.conv().items()}
    return {
        "conv": [Subject("conv", conv)],
        "ssd": [subject(ssd_scan), subject(ssd_window, may(ssd_tree_scan, at_once), how=at_once, longest=128)],
        "selective": [subject(selective_scan, may(selective_tree, at_once))],
        "delta": [subject(delta_scan), subject(delta_chunked, may(delta_tree, at_once), how=at_once, longest=32)],
        "kda": [channel(subject(kda_scan)), channel(subject(kda_tree, how=at_once))],
        "shortconv": [
            subject(shortconv_scan, sizes=COLUMNS),
            subject(shortconv_packed, sizes=COLUMNS),
            subject(shortconv_tree, sizes=COLUMNS, longest=MOST),
        ],
        "mamba3": [
            subject(mamba3_scan, sizes={}),
            subject(mamba3_packed, sizes={}),
            subject(mamba3_tree, sizes={}, how=at_once, longest=LARGEST),
        ],
    }


def prompts(kernels: Kernels, contract: NumericContract) -> list[Subject]:
    """The launchers of prompts that go chunk by chunk; with activations in bf16 also with products in bf16."""
    made = []
    widest = tile("bf16", torch.device(kernels.device))[0]
    for narrow in (False, True) if kernels.io == torch.bfloat16 else (False,):
        for launcher, tokens, narrow_tokens in ((ssd_chunk_scan, 64, 64), (delta_chunk_scan, 32, widest)):
            chunk = replace(contract, order="chunked", chunk=narrow_tokens if narrow else tokens)
            run = kernels.packed(launcher, products="bf16") if narrow else kernels.packed(launcher)
            how = of_products("bf16", chunk) if narrow else chunk
            limits = Limits(POOLS, TAPS, reason="what one launch takes")
            (name,) = ORACLES[launcher.__name__].judged
            title = launcher.__name__ + (" in bf16" if narrow else "")
            made.append(Subject(title, {name: Capability(run, how, limits)}))
    return made


def adapter(device: str = "cuda") -> Adapter:
    """The kernels on a device. Raises: Unsupported for a device that kernels cannot run on."""
    if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise Unsupported("kernels do not run on a cpu; give --device cuda, or --device interpreter")
    check_device(device)
    subjects: list[Subject] = []
    for state, io in FORMATS if device != "cpu" else INTERPRETED:
        kernels = Kernels(device, DTYPES[state], DTYPES[io])
        contract = replace(CONTRACT, state=state, io=io)
        one, many = windows(kernels, contract), decoding.subjects(kernels, contract)
        for kind in ("conv", "ssd", "selective", "delta", "kda"):
            subjects += one[kind]
        subjects += prompts(kernels, contract)
        subjects += attention.subjects(device, DTYPES[io], contract) if state == "fp32" else []
        for kind in ("ssd", "delta", "replay", "kda"):
            subjects += many[kind]
        for kind in ("shortconv", "mamba3"):
            subjects += one[kind] + many[kind]
        subjects += coded.subjects(kernels, contract) if state == "fp32" else []
    subjects += acceptance.subjects(device, CONTRACT)
    return Adapter("ssmspec_kernels", f"triton {triton.__version__}", tuple(subjects))
