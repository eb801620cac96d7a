"""The recurrences by the Triton kernels: launchers, and combinations of them where there is no kernel.

The scans process a window token by token in registers, and in bitwise mode the compiler fuses nothing, so that a window has
the bits of single tokens if the state is stored in fp32. The matrix forms (`ssd_window`, `ssd_chunk_scan`,
`delta_chunk_scan`, the trees) are for fast mode. In bitwise mode a packed run is a scan of padded rows, and a tree the scan
of every node's path.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from ssmspec_kernels.delta.delta_chunk_scan import delta_chunk_scan
from ssmspec_kernels.delta.delta_scan import delta_scan
from ssmspec_kernels.delta.delta_snapshots import delta_snapshots
from ssmspec_kernels.delta.delta_tree import delta_tree
from ssmspec_kernels.delta.ring.delta_buffered import delta_buffered
from ssmspec_kernels.delta.ring.delta_flush import delta_flush
from ssmspec_kernels.kda.kda_commit import kda_commit
from ssmspec_kernels.kda.kda_inputs import formed_gates
from ssmspec_kernels.kda.kda_scan import kda_scan
from ssmspec_kernels.kda.kda_snapshots import kda_snapshots
from ssmspec_kernels.kda.kda_tree import kda_tree
from ssmspec_kernels.mamba3.mamba3_buffered import mamba3_buffered
from ssmspec_kernels.mamba3.mamba3_commit import mamba3_commit
from ssmspec_kernels.mamba3.mamba3_flush import mamba3_flush
from ssmspec_kernels.mamba3.mamba3_packed import mamba3_packed
from ssmspec_kernels.mamba3.mamba3_scan import mamba3_scan
from ssmspec_kernels.mamba3.mamba3_snapshots import mamba3_snapshots
from ssmspec_kernels.mamba3.mamba3_tree import LARGEST, mamba3_tree
from ssmspec_kernels.row import FP32, fields_of, row_of, taken, takes
from ssmspec_kernels.selective.selective_scan import selective_scan
from ssmspec_kernels.selective.selective_tree import selective_tree
from ssmspec_kernels.shortconv.shortconv_buffered import shortconv_buffered
from ssmspec_kernels.shortconv.shortconv_commit import shortconv_commit
from ssmspec_kernels.shortconv.shortconv_flush import shortconv_flush
from ssmspec_kernels.shortconv.shortconv_packed import shortconv_packed
from ssmspec_kernels.shortconv.shortconv_scan import shortconv_scan
from ssmspec_kernels.shortconv.shortconv_snapshots import shortconv_snapshots
from ssmspec_kernels.shortconv.shortconv_tree import shortconv_tree
from ssmspec_kernels.ssd.ring.ssd_buffered import ssd_buffered
from ssmspec_kernels.ssd.ring.ssd_flush import ssd_flush
from ssmspec_kernels.ssd.ssd_chunk_scan import ssd_chunk_scan
from ssmspec_kernels.ssd.ssd_commit import ssd_commit
from ssmspec_kernels.ssd.ssd_gated import ssd_gated
from ssmspec_kernels.ssd.ssd_gated_window import ssd_gated_window
from ssmspec_kernels.ssd.ssd_scan import ssd_scan
from ssmspec_kernels.ssd.ssd_snapshots import ssd_snapshots
from ssmspec_kernels.ssd.ssd_tree_scan import ssd_tree_scan
from ssmspec_kernels.ssd.ssd_window import ssd_window

from . import DeltaInputs, Gate, KDAParams, Recurrence, SSDInputs, SSDParams, Weighted
from .slots import each, expand, put, repack, take, unpack
from .torch_recurrences import clear
from .triton_rows import folds

MATRIX = 4
"""From this number of tokens on, the matrix form of an SSD window is faster."""
Launcher = Callable[..., Any]


class Launched(Recurrence):
    """A recurrence by its launchers: that of its scan, and of other operations where `kernels` has one.

    `fixed` are the operations whose kernel gives a token the bits that it has in a scan: the others are for fast mode.
    `solves` is the input whose shape an entry of a ring has that is computed, in fp32.
    """

    kernels: ClassVar[Mapping[str, Launcher]]
    fixed: ClassVar[tuple[str, ...]] = ("scan", "snapshots")
    solves: ClassVar[str] = ""

    def __init__(self, bitwise: bool) -> None:
        self.bitwise = bitwise
        if "commit" not in self.kernels:
            self.commit = None  # type: ignore[method-assign, assignment]
        if "buffered" not in self.kernels:
            self.buffered = None  # type: ignore[method-assign, assignment]

    @property
    def replayed(self) -> tuple[str, ...]:  # type: ignore[override]
        """The parameters in the row of the commit, with an axis of layers."""
        row = row_of(self.kernels["commit"])
        return tuple(e.name for e in row if e.argument.axes.startswith("i ") and not e.argument.size)

    def run(self, launcher: Launcher, S: Tensor, inputs: Any, params: Any, **named: Any) -> Any:
        """A launch, with what the launcher takes of the records."""
        return launcher(**taken(launcher, inputs, params, S=S, **named))

    def kernel(self, operation: str) -> Launcher | None:
        """The launcher of an operation, if it may be used."""
        return None if self.bitwise and operation not in self.fixed else self.kernels.get(operation)

    def at_once(self, inputs: Any, params: Any) -> tuple[Any, Any]:
        """The records as the kernels of prompts and rings take them."""
        return inputs, params

    def walk(self, S: Tensor, inputs: Any, params: Any, slots: Tensor, live: Tensor | None, write_state: bool) -> Tensor:
        """The scan kernel, token by token."""
        scan = self.kernels["scan"]
        how = {"fused": not self.bitwise} if "fused" in takes(scan) else {}
        found: Tensor = self.run(scan, S, inputs, params, slots=slots, live=live, write_state=write_state, **how)
        return found

    def scan(
        self, S: Tensor, inputs: Any, params: Any, *, slots: Tensor, live: Tensor | None = None, write_state: bool = True
    ) -> Tensor:
        return self.walk(S, inputs, params, slots, live, write_state)

    def snapshots(
        self, S: Tensor, inputs: Any, params: Any, places: Tensor, *, slots: Tensor, live: Tensor | None = None
    ) -> Tensor:
        """Without a kernel one launch per token, each into the place of the last stored state."""
        if kernel := self.kernel("snapshots"):
            found: Tensor = self.run(kernel, S, inputs, params, places=places, slots=slots, live=live)
            return found
        held, outputs = take(S, slots), []
        rows = torch.arange(len(slots), device=S.device)
        for t in range(inputs[0].shape[1]):
            token = type(inputs)(*(None if x is None else x[:, t : t + 1].contiguous() for x in inputs))
            now = None if live is None else live[:, t : t + 1].contiguous()
            outputs.append(self.walk(held, token, params, torch.where(slots >= 0, rows, -1), now, True))
            put(S, torch.where(slots >= 0, places[:, t], -1), held)
        return torch.cat(outputs, dim=1)

    def packed(
        self, S: Tensor, inputs: Any, params: Any, bounds: Tensor, *, slots: Tensor, fresh: Tensor | None = None
    ) -> Tensor:
        """Without a kernel a scan of padded rows."""
        if kernel := self.kernel("packed"):
            run, given = self.at_once(each(inputs, first), params)
            found: Tensor = self.run(kernel, S, run, given, bounds=bounds, slots=slots, fresh=fresh)
            return found[None]
        clear(S, slots, fresh)
        live = unpack(inputs[0], bounds)[1]
        rows = each(inputs, lambda x: unpack(x, bounds)[0].contiguous())
        return repack(self.walk(S, rows, params, slots, live, True), live, inputs[0])

    def tree(self, S: Tensor, inputs: Any, params: Any, parents: Tensor, ancestors: Tensor, *, slots: Tensor) -> Tensor:
        """Without a kernel every node's path as a separate row."""
        if kernel := self.kernel("tree"):
            shape = taken(kernel, {"parents": parents, "ancestors": ancestors})
            found: Tensor = self.run(kernel, S, inputs, params, **shape, slots=slots)
            return found
        return self.along_paths(S, inputs, params, parents, ancestors, slots)

    def along_paths(self, S: Tensor, inputs: Any, params: Any, parents: Tensor, ancestors: Tensor, slots: Tensor) -> Tensor:
        b, t = parents.shape
        order = torch.argsort((~ancestors).long(), dim=2, stable=True)  # the path first, root first
        live = torch.gather(ancestors, 2, order).view(b * t, t)
        flat = order.view(b, t * t)

        def along(x: Tensor) -> Tensor:
            read = flat.view(b, t * t, *(1,) * (x.dim() - 2)).expand(b, t * t, *x.shape[2:])
            return torch.gather(x, 1, read).view(b * t, t, *x.shape[2:])

        y = self.walk(S, each(inputs, along), params, slots.repeat_interleave(t), live, False)
        last = (live.sum(1) - 1).clamp_min(0)
        found = y[torch.arange(b * t, device=y.device), last].view(b, t, *y.shape[2:])
        return torch.where(expand(parents >= -1, found), found, found.new_zeros(()))

    def commit(self, S: Tensor, inputs: Any, params: Any, **named: Tensor | None) -> None:
        """Enters the accepted tokens of a window into the states of all layers; everything has a leading axis of layers."""
        self.run(self.kernels["commit"], S, inputs, params, **named)

    def new_ring(self, room: Any, origin: Tensor, held: Tensor) -> Any:
        """An empty ring, from tensors of the shapes and types of the inputs of as many tokens as it has entries."""
        given = {**fields_of(room), "origin": origin, "held": held}
        solved = {"u": given[self.solves].float()} if self.solves else {}
        return new_record(self.kernels["buffered"], "ring", given | solved)

    def buffered(self, S: Tensor, ring: Any, inputs: Any, params: Any, **named: Any) -> Tensor:
        """A window after the ring's history, and the flush of the rows that are due."""
        found: Tensor = self.run(self.kernels["buffered"], S, *self.at_once(inputs, params), ring=ring, **named)
        return found

    def flush(self, S: Tensor, ring: Any, params: Any, *, slots: Tensor) -> None:
        self.run(self.kernels["flush"], S, {}, params, ring=ring, rows=len(slots), slots=slots)


class SSD(Launched):
    """Mamba-2."""

    kernels: ClassVar[Mapping[str, Launcher]] = {
        "scan": ssd_scan,
        "snapshots": ssd_snapshots,
        "packed": ssd_chunk_scan,
        "tree": ssd_tree_scan,
        "commit": ssd_commit,
        "buffered": ssd_buffered,
        "flush": ssd_flush,
    }

    def scan(
        self, S: Tensor, inputs: Any, params: Any, *, slots: Tensor, live: Tensor | None = None, write_state: bool = True
    ) -> Tensor:
        if self.bitwise or inputs.x.shape[1] < MATRIX:
            return self.walk(S, inputs, params, slots, live, write_state)
        found: Tensor = self.run(ssd_window, S, inputs, params, slots=slots, live=live, write_state=write_state)
        return found

    def gated(self, S: Tensor, inputs: Any, params: Any, gate: Gate, *, slots: Tensor) -> Weighted | None:
        """Not in bitwise mode: a window is scanned by other kernels, and a token must be gated in the same way."""
        if self.bitwise or not folds(gate.z, self.bitwise):
            return None
        return self._weighted(ssd_gated, S, inputs, params, gate, slots=slots)

    def gated_window(
        self, S: Tensor, inputs: Any, params: Any, gate: Gate, *, ancestors: Tensor | None = None, slots: Tensor
    ) -> Weighted | None:
        if self.bitwise or inputs.x.shape[1] < MATRIX or not folds(gate.z, self.bitwise):
            return None
        return self._weighted(ssd_gated_window, S, inputs, params, gate, ancestors=ancestors, slots=slots)

    def _weighted(
        self, launcher: Launcher, S: Tensor, inputs: SSDInputs, params: SSDParams, gate: Gate, **named: Any
    ) -> Weighted:
        """A launcher that gates, with gate and weight by heads."""
        shape = inputs.x.shape
        given = inputs._replace(z=gate.z.view(shape))
        v, squares = self.run(launcher, S, given, params, weight=gate.weight.view(shape[2:]), **named)
        return Weighted(v.flatten(2), squares, gate.eps)


class Delta(Launched):
    """The gated delta rule."""

    kernels: ClassVar[Mapping[str, Launcher]] = {
        "scan": delta_scan,
        "snapshots": delta_snapshots,
        "packed": delta_chunk_scan,
        "tree": delta_tree,
        "buffered": delta_buffered,
        "flush": delta_flush,
    }
    solves = "v"


class KDA(Delta):
    """Kimi Delta Attention. The kernels of prompts and rings are those of the delta rule, which take a decay per key channel,
    but no lower bound: gates that have one are formed before them."""

    kernels: ClassVar[Mapping[str, Launcher]] = {
        **Delta.kernels,
        "scan": kda_scan,
        "snapshots": kda_snapshots,
        "tree": kda_tree,
        "commit": kda_commit,
    }

    def at_once(self, inputs: DeltaInputs, params: KDAParams) -> tuple[DeltaInputs, Any]:
        if params.lower_bound is None:
            return inputs, params
        g, beta = formed_gates(inputs.g, inputs.beta, params.A, params.dt_bias, params.lower_bound)
        return inputs._replace(g=g, beta=beta), {"l2_norm": params.l2_norm, "scale": params.scale, "eps": params.eps}


class Selective(Launched):
    """Mamba-1."""

    kernels: ClassVar[Mapping[str, Launcher]] = {"scan": selective_scan, "tree": selective_tree}


class ShortConv(Launched):
    """LFM2's short convolution; a token has the same bits in every kernel, so that bitwise mode needs no others."""

    kernels: ClassVar[Mapping[str, Launcher]] = {
        "scan": shortconv_scan,
        "snapshots": shortconv_snapshots,
        "packed": shortconv_packed,
        "tree": shortconv_tree,
        "commit": shortconv_commit,
        "buffered": shortconv_buffered,
        "flush": shortconv_flush,
    }
    fixed = ("scan", "snapshots", "packed", "tree")
    solves = "x"


class Mamba3(Launched):
    """Mamba-3; a token has the same bits in the scan, the prompt, the commit and the ring."""

    kernels: ClassVar[Mapping[str, Launcher]] = {
        "scan": mamba3_scan,
        "snapshots": mamba3_snapshots,
        "packed": mamba3_packed,
        "tree": mamba3_tree,
        "commit": mamba3_commit,
        "buffered": mamba3_buffered,
        "flush": mamba3_flush,
    }
    fixed = ("scan", "snapshots", "packed")

    def tree(self, S: Tensor, inputs: Any, params: Any, parents: Tensor, ancestors: Tensor, *, slots: Tensor) -> Tensor:
        """Of large trees every node's path."""
        if parents.shape[1] > LARGEST:
            return self.along_paths(S, inputs, params, parents, ancestors, slots)
        return super().tree(S, inputs, params, parents, ancestors, slots=slots)


def first(x: Tensor) -> Tensor:
    """The one row of a packed run."""
    return x[0]


def new_record(launcher: Launcher, parameter: str, fields: Mapping[str, Tensor]) -> Any:
    """A ring or a cache of a launcher from tensors by the names of its fields; in fp32 where its row takes no other type."""
    entries = [entry for entry in row_of(launcher) if entry.parameter == parameter]
    parts = ((fields[entry.name.partition(".")[2]], entry.argument.types == FP32) for entry in entries)
    kind: Any = entries[0].record
    return kind(*(x.float() if exact else x for x, exact in parts))
