"""The recurrences by the Triton kernels: launchers, and combinations of them where there is no kernel.

The scans process a window token by token in registers, and in bitwise mode the compiler fuses nothing, so that a window has
the bits of single tokens if the state is stored in fp32. The matrix forms (`ssd_window`, `ssd_chunk_scan`,
`delta_chunk_scan`, the trees) are for fast mode. In bitwise mode a packed run is a scan of padded rows, and a tree the scan
of every node's path.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from ssmspec_kernels.delta.delta_chunk_scan import delta_chunk_scan
from ssmspec_kernels.delta.delta_scan import delta_scan
from ssmspec_kernels.delta.delta_snapshots import delta_snapshots
from ssmspec_kernels.delta.delta_tree import delta_tree
from ssmspec_kernels.delta.ring.delta_buffered import delta_buffered
from ssmspec_kernels.delta.ring.delta_flush import delta_flush
from ssmspec_kernels.delta.ring.delta_ring import Ring as DeltaRing
from ssmspec_kernels.kda.kda_commit import kda_commit
from ssmspec_kernels.kda.kda_inputs import formed_gates
from ssmspec_kernels.kda.kda_scan import kda_scan
from ssmspec_kernels.kda.kda_snapshots import kda_snapshots
from ssmspec_kernels.kda.kda_tree import kda_tree
from ssmspec_kernels.selective.selective_scan import selective_scan
from ssmspec_kernels.selective.selective_tree import selective_tree
from ssmspec_kernels.shortconv.shortconv_buffered import shortconv_buffered
from ssmspec_kernels.shortconv.shortconv_commit import shortconv_commit
from ssmspec_kernels.shortconv.shortconv_flush import shortconv_flush
from ssmspec_kernels.shortconv.shortconv_packed import shortconv_packed
from ssmspec_kernels.shortconv.shortconv_ring import Ring as ShortConvRing
from ssmspec_kernels.shortconv.shortconv_scan import shortconv_scan
from ssmspec_kernels.shortconv.shortconv_snapshots import shortconv_snapshots
from ssmspec_kernels.shortconv.shortconv_tree import shortconv_tree
from ssmspec_kernels.ssd.ring.ssd_buffered import ssd_buffered
from ssmspec_kernels.ssd.ring.ssd_flush import ssd_flush
from ssmspec_kernels.ssd.ring.ssd_ring import Ring as SSDRing
from ssmspec_kernels.ssd.ssd_chunk_scan import ssd_chunk_scan
from ssmspec_kernels.ssd.ssd_commit import ssd_commit
from ssmspec_kernels.ssd.ssd_gated import ssd_gated
from ssmspec_kernels.ssd.ssd_gated_window import ssd_gated_window
from ssmspec_kernels.ssd.ssd_scan import ssd_scan
from ssmspec_kernels.ssd.ssd_snapshots import ssd_snapshots
from ssmspec_kernels.ssd.ssd_tree_scan import ssd_tree_scan
from ssmspec_kernels.ssd.ssd_window import ssd_window

from . import (
    DeltaInputs,
    Gate,
    KDAParams,
    Recurrence,
    SelectiveInputs,
    SelectiveParams,
    SSDInputs,
    SSDParams,
    Weighted,
)
from .slots import each, expand, put, repack, take, unpack
from .torch_recurrences import clear
from .triton_rows import folds

MATRIX = 4
"""From this number of tokens on, the matrix form of an SSD window is faster."""


class Launched(Recurrence, ABC):
    """A recurrence by its scan kernel; subclasses have the other kernels."""

    def __init__(self, bitwise: bool) -> None:
        self.bitwise = bitwise

    @abstractmethod
    def walk(self, S: Tensor, inputs: Any, params: Any, slots: Tensor, live: Tensor | None, write_state: bool) -> Tensor:
        """The scan kernel, token by token."""

    def scan(
        self, S: Tensor, inputs: Any, params: Any, *, slots: Tensor, live: Tensor | None = None, write_state: bool = True
    ) -> Tensor:
        return self.walk(S, inputs, params, slots, live, write_state)

    def snapshots(
        self, S: Tensor, inputs: Any, params: Any, places: Tensor, *, slots: Tensor, live: Tensor | None = None
    ) -> Tensor:
        """One launch per token, each into the place of the last stored state."""
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
        clear(S, slots, fresh)
        live = unpack(inputs[0], bounds)[1]
        rows = each(inputs, lambda x: unpack(x, bounds)[0].contiguous())
        return repack(self.walk(S, rows, params, slots, live, True), live, inputs[0])

    def tree(self, S: Tensor, inputs: Any, params: Any, parents: Tensor, ancestors: Tensor, *, slots: Tensor) -> Tensor:
        """Every node's path as a separate row."""
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


class SSD(Launched):
    """Mamba-2."""

    def walk(
        self, S: Tensor, inputs: SSDInputs, params: SSDParams, slots: Tensor, live: Tensor | None, write_state: bool
    ) -> Tensor:
        given = named(inputs, params) | {"slots": slots, "live": live, "write_state": write_state}
        return ssd_scan(S, *leading(inputs, params), **given, fused=not self.bitwise)

    def scan(
        self, S: Tensor, inputs: Any, params: Any, *, slots: Tensor, live: Tensor | None = None, write_state: bool = True
    ) -> Tensor:
        if self.bitwise or inputs.x.shape[1] < MATRIX:
            return self.walk(S, inputs, params, slots, live, write_state)
        return ssd_window(
            S, *leading(inputs, params), **named(inputs, params), slots=slots, live=live, write_state=write_state
        )

    def snapshots(
        self, S: Tensor, inputs: Any, params: Any, places: Tensor, *, slots: Tensor, live: Tensor | None = None
    ) -> Tensor:
        return ssd_snapshots(S, *leading(inputs, params), places, **named(inputs, params), slots=slots, live=live)

    def packed(
        self, S: Tensor, inputs: Any, params: Any, bounds: Tensor, *, slots: Tensor, fresh: Tensor | None = None
    ) -> Tensor:
        if self.bitwise:
            return super().packed(S, inputs, params, bounds, slots=slots, fresh=fresh)
        run = each(inputs, first)
        return ssd_chunk_scan(S, *leading(run, params), bounds, **named(run, params), slots=slots, fresh=fresh)[None]

    def tree(self, S: Tensor, inputs: Any, params: Any, parents: Tensor, ancestors: Tensor, *, slots: Tensor) -> Tensor:
        if self.bitwise:
            return super().tree(S, inputs, params, parents, ancestors, slots=slots)
        return ssd_tree_scan(S, *leading(inputs, params), ancestors, **named(inputs, params), slots=slots)

    def commit(
        self,
        S: Tensor,
        inputs: SSDInputs,
        params: SSDParams,
        *,
        slots: Tensor,
        rows: Tensor | None = None,
        advanced: Tensor | None = None,
        path: Tensor | None = None,
    ) -> None:
        """Enters the accepted tokens of a window into the states of all layers; everything has a leading axis of layers."""
        given: dict[str, Any] = {"advanced": advanced, "path": path, "rows": rows, "slots": slots}
        given |= {"dt_bias": params.dt_bias, "dt_softplus": params.dt_softplus, "dt_limit": params.dt_limit}
        ssd_commit(S, inputs.x, inputs.dt, params.A, inputs.B, **given)

    def gated(self, S: Tensor, inputs: Any, params: Any, gate: Gate, *, slots: Tensor) -> Weighted | None:
        """Not in bitwise mode: a window is scanned by other kernels, and a token must be gated in the same way."""
        if self.bitwise or not folds(gate.z, self.bitwise):
            return None
        v, squares = ssd_gated(S, *leading(inputs, params), **with_gate(inputs, params, gate), slots=slots)
        return Weighted(v.flatten(2), squares, gate.eps)

    def gated_window(
        self, S: Tensor, inputs: Any, params: Any, gate: Gate, *, ancestors: Tensor | None = None, slots: Tensor
    ) -> Weighted | None:
        if self.bitwise or inputs.x.shape[1] < MATRIX or not folds(gate.z, self.bitwise):
            return None
        given = with_gate(inputs, params, gate) | {"ancestors": ancestors, "slots": slots}
        v, squares = ssd_gated_window(S, *leading(inputs, params), **given)
        return Weighted(v.flatten(2), squares, gate.eps)

    def new_ring(self, room: SSDInputs, origin: Tensor, held: Tensor) -> SSDRing:
        return SSDRing(room.x, room.dt.float(), room.B, origin, held)

    def buffered(
        self,
        S: Tensor,
        ring: SSDRing,
        inputs: SSDInputs,
        params: SSDParams,
        *,
        window: int,
        slots: Tensor,
        lengths: Tensor | None,
    ) -> Tensor:
        """A window after the ring's history, and the flush of the rows that are due."""
        given = named(inputs, params)
        return ssd_buffered(S, ring, *leading(inputs, params), **given, window=window, slots=slots, lengths=lengths)

    def flush(self, S: Tensor, ring: SSDRing, params: SSDParams, *, slots: Tensor) -> None:
        ssd_flush(S, ring, params.A, len(slots), slots=slots)


class Delta(Launched):
    """The gated delta rule."""

    scanning: ClassVar[Any] = staticmethod(delta_scan)
    keeping: ClassVar[Any] = staticmethod(delta_snapshots)
    branching: ClassVar[Any] = staticmethod(delta_tree)

    def by_rule(self, inputs: DeltaInputs, params: Any) -> tuple[DeltaInputs, dict[str, Any]]:
        """Positional and keyword arguments of the kernels of prompts and rings."""
        return inputs, params._asdict()

    def walk(
        self, S: Tensor, inputs: DeltaInputs, params: Any, slots: Tensor, live: Tensor | None, write_state: bool
    ) -> Tensor:
        given = params._asdict() | {"slots": slots, "live": live, "write_state": write_state}
        found: Tensor = self.scanning(S, *inputs, **given, fused=not self.bitwise)
        return found

    def snapshots(
        self, S: Tensor, inputs: Any, params: Any, places: Tensor, *, slots: Tensor, live: Tensor | None = None
    ) -> Tensor:
        found: Tensor = self.keeping(S, *inputs, places, **params._asdict(), slots=slots, live=live)
        return found

    def packed(
        self, S: Tensor, inputs: Any, params: Any, bounds: Tensor, *, slots: Tensor, fresh: Tensor | None = None
    ) -> Tensor:
        if self.bitwise:
            return super().packed(S, inputs, params, bounds, slots=slots, fresh=fresh)
        run, given = self.by_rule(each(inputs, first), params)
        return delta_chunk_scan(S, *run, bounds, **given, slots=slots, fresh=fresh)[None]

    def tree(self, S: Tensor, inputs: Any, params: Any, parents: Tensor, ancestors: Tensor, *, slots: Tensor) -> Tensor:
        if self.bitwise:
            return super().tree(S, inputs, params, parents, ancestors, slots=slots)
        found: Tensor = self.branching(S, *inputs, ancestors, **params._asdict(), slots=slots)
        return found

    def new_ring(self, room: DeltaInputs, origin: Tensor, held: Tensor) -> DeltaRing:
        """A token's update is stored in fp32."""
        return DeltaRing(room.v.float(), room.k, room.g.float(), origin, held)

    def buffered(
        self,
        S: Tensor,
        ring: DeltaRing,
        inputs: DeltaInputs,
        params: Any,
        *,
        window: int,
        slots: Tensor,
        lengths: Tensor | None,
    ) -> Tensor:
        """A window after the ring's history, and the flush of the rows that are due."""
        run, given = self.by_rule(inputs, params)
        return delta_buffered(S, ring, *run, **given, window=window, slots=slots, lengths=lengths)

    def flush(self, S: Tensor, ring: DeltaRing, params: Any, *, slots: Tensor) -> None:
        delta_flush(S, ring, len(slots), l2_norm=params.l2_norm, eps=params.eps, slots=slots)


class KDA(Delta):
    """Kimi Delta Attention. The kernels of prompts and rings are those of the delta rule, which take a decay per key channel,
    but no lower bound: gates that have one are formed before them."""

    scanning: ClassVar[Any] = staticmethod(kda_scan)
    keeping: ClassVar[Any] = staticmethod(kda_snapshots)
    branching: ClassVar[Any] = staticmethod(kda_tree)

    def by_rule(self, inputs: DeltaInputs, params: KDAParams) -> tuple[DeltaInputs, dict[str, Any]]:
        given = {"l2_norm": params.l2_norm, "scale": params.scale, "eps": params.eps}
        if params.lower_bound is None:
            return inputs, given | {"A": params.A, "dt_bias": params.dt_bias}
        g, beta = formed_gates(inputs.g, inputs.beta, params.A, params.dt_bias, params.lower_bound)
        return inputs._replace(g=g, beta=beta), given

    def commit(
        self,
        S: Tensor,
        inputs: DeltaInputs,
        params: KDAParams,
        *,
        slots: Tensor,
        rows: Tensor | None = None,
        advanced: Tensor | None = None,
        path: Tensor | None = None,
    ) -> None:
        """Enters the accepted tokens of a window into the states of all layers; everything has a leading axis of layers. The
        queries are not read."""
        given = {name: value for name, value in params._asdict().items() if name != "scale"}
        given |= {"advanced": advanced, "path": path, "rows": rows, "slots": slots}
        kda_commit(S, inputs.k, inputs.v, inputs.g, inputs.beta, **given)


class Selective(Launched):
    """Mamba-1."""

    def walk(
        self,
        S: Tensor,
        inputs: SelectiveInputs,
        params: SelectiveParams,
        slots: Tensor,
        live: Tensor | None,
        write_state: bool,
    ) -> Tensor:
        given = named(inputs, params) | {"slots": slots, "live": live, "write_state": write_state}
        return selective_scan(S, *leading(inputs, params), **given)

    def tree(self, S: Tensor, inputs: Any, params: Any, parents: Tensor, ancestors: Tensor, *, slots: Tensor) -> Tensor:
        if self.bitwise:
            return super().tree(S, inputs, params, parents, ancestors, slots=slots)
        return selective_tree(S, *leading(inputs, params), parents, **named(inputs, params), slots=slots)


class ShortConv(Launched):
    """LFM2's short convolution; a token has the same bits in every kernel, so that bitwise mode needs no others."""

    def walk(self, S: Tensor, inputs: Any, params: Any, slots: Tensor, live: Tensor | None, write_state: bool) -> Tensor:
        return shortconv_scan(
            S, *tokens(inputs), params.weight, bias=params.bias, slots=slots, live=live, write_state=write_state
        )

    def snapshots(
        self, S: Tensor, inputs: Any, params: Any, places: Tensor, *, slots: Tensor, live: Tensor | None = None
    ) -> Tensor:
        return shortconv_snapshots(S, *tokens(inputs), params.weight, places, bias=params.bias, slots=slots, live=live)

    def packed(
        self, S: Tensor, inputs: Any, params: Any, bounds: Tensor, *, slots: Tensor, fresh: Tensor | None = None
    ) -> Tensor:
        run = tokens(each(inputs, first))
        return shortconv_packed(S, *run, params.weight, bounds, bias=params.bias, slots=slots, fresh=fresh)[None]

    def tree(self, S: Tensor, inputs: Any, params: Any, parents: Tensor, ancestors: Tensor, *, slots: Tensor) -> Tensor:
        return shortconv_tree(S, *tokens(inputs), params.weight, parents, bias=params.bias, slots=slots)

    def commit(
        self,
        S: Tensor,
        inputs: Any,
        params: Any,
        *,
        slots: Tensor,
        rows: Tensor | None = None,
        advanced: Tensor | None = None,
        path: Tensor | None = None,
    ) -> None:
        """Enters the accepted products of a window into the columns of all layers; everything has a leading axis of layers.
        C and the parameters are not read."""
        shortconv_commit(S, inputs.B, inputs.x, advanced=advanced, path=path, rows=rows, slots=slots)

    def new_ring(self, room: Any, origin: Tensor, held: Tensor) -> ShortConvRing:
        """A token's product is stored in fp32, in which that of two bf16 numbers is exact."""
        return ShortConvRing(room.x.float(), origin, held)

    def buffered(
        self, S: Tensor, ring: ShortConvRing, inputs: Any, params: Any, *, window: int, slots: Tensor, lengths: Tensor | None
    ) -> Tensor:
        """A window after the ring's history, and the flush of the rows that are due."""
        given: dict[str, Any] = {"window": window, "slots": slots, "lengths": lengths}
        return shortconv_buffered(S, ring, *tokens(inputs), params.weight, bias=params.bias, **given)

    def flush(self, S: Tensor, ring: ShortConvRing, params: Any, *, slots: Tensor) -> None:
        shortconv_flush(S, ring, len(slots), slots=slots)


def tokens(inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Positional arguments of the launchers of the short convolution: B, C, x."""
    return inputs.B, inputs.C, inputs.x


def leading(inputs: Any, params: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Positional arguments of the launchers of SSD and Mamba-1: x, dt, A, B, C."""
    return inputs.x, inputs.dt, params.A, inputs.B, inputs.C


def named(inputs: Any, params: Any) -> dict[str, Any]:
    """Their keyword arguments."""
    return {"z": inputs.z} | {name: value for name, value in params._asdict().items() if name != "A"}


def with_gate(inputs: Any, params: Any, gate: Gate) -> dict[str, Any]:
    """Keyword arguments of a launcher that gates, with gate and weight by heads."""
    shape = inputs.x.shape
    return named(inputs, params) | {"z": gate.z.view(shape), "weight": gate.weight.view(shape[2:])}


def first(x: Tensor) -> Tensor:
    """The one row of a packed run."""
    return x[0]
