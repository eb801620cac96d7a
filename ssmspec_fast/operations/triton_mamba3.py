"""Mamba-3 by the Triton kernels; a token has the same bits in the scan, the prompt, the commit and the ring."""

from typing import Any

from torch import Tensor

from ssmspec_kernels.mamba3.mamba3_buffered import mamba3_buffered
from ssmspec_kernels.mamba3.mamba3_commit import mamba3_commit
from ssmspec_kernels.mamba3.mamba3_flush import mamba3_flush
from ssmspec_kernels.mamba3.mamba3_packed import mamba3_packed
from ssmspec_kernels.mamba3.mamba3_ring import Ring
from ssmspec_kernels.mamba3.mamba3_scan import mamba3_scan
from ssmspec_kernels.mamba3.mamba3_snapshots import mamba3_snapshots
from ssmspec_kernels.mamba3.mamba3_tree import LARGEST, mamba3_tree

from .slots import each
from .triton_recurrences import Launched, first

WRITTEN = ("B_norm", "B_bias", "dt_bias", "up")
"""The parameters of what a token writes into a state."""


class Mamba3(Launched):
    """Mamba-3."""

    replayed = WRITTEN

    def walk(self, S: Tensor, inputs: Any, params: Any, slots: Tensor, live: Tensor | None, write_state: bool) -> Tensor:
        return mamba3_scan(S, **named(inputs, params), slots=slots, live=live, write_state=write_state)

    def snapshots(
        self, S: Tensor, inputs: Any, params: Any, places: Tensor, *, slots: Tensor, live: Tensor | None = None
    ) -> Tensor:
        return mamba3_snapshots(S, **named(inputs, params), places=places, slots=slots, live=live)

    def packed(
        self, S: Tensor, inputs: Any, params: Any, bounds: Tensor, *, slots: Tensor, fresh: Tensor | None = None
    ) -> Tensor:
        run = named(each(inputs, first), params)
        return mamba3_packed(S, **run, bounds=bounds, slots=slots, fresh=fresh)[None]

    def tree(self, S: Tensor, inputs: Any, params: Any, parents: Tensor, ancestors: Tensor, *, slots: Tensor) -> Tensor:
        """In bitwise mode, and for large trees, every node's path."""
        if self.bitwise or parents.shape[1] > LARGEST:
            return super().tree(S, inputs, params, parents, ancestors, slots=slots)
        return mamba3_tree(S, **named(inputs, params), ancestors=ancestors, slots=slots)

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
        """Enters the accepted tokens of a window into all four pieces of the states of all layers; everything has a leading
        axis of layers. C, z and what they need are not read."""
        given = {name: value for name, value in inputs._asdict().items() if name not in ("C", "z")}
        given |= {name: getattr(params, name) for name in WRITTEN} | shared(params)
        mamba3_commit(S, **given, advanced=advanced, path=path, rows=rows, slots=slots)

    def new_ring(self, room: Any, origin: Tensor, held: Tensor) -> Ring:
        """A token's entry is what the projection gave it."""
        return Ring(room.x, room.dt, room.A, room.trap, room.angle, room.B, origin, held)

    def buffered(
        self, S: Tensor, ring: Ring, inputs: Any, params: Any, *, window: int, slots: Tensor, lengths: Tensor | None
    ) -> Tensor:
        """A window after the ring's history, and the flush of the rows that are due."""
        return mamba3_buffered(S, ring, **named(inputs, params), window=window, slots=slots, lengths=lengths)

    def flush(self, S: Tensor, ring: Ring, params: Any, *, slots: Tensor) -> None:
        given = {name: getattr(params, name) for name in WRITTEN} | shared(params)
        mamba3_flush(S, ring, **given, rows=len(slots), slots=slots)


def named(inputs: Any, params: Any) -> dict[str, Any]:
    """The keyword arguments of the launchers of windows."""
    arrays = {name: value for name, value in params._asdict().items() if name not in ("floor", "eps", "halves")}
    return inputs._asdict() | arrays | shared(params)


def shared(params: Any) -> dict[str, Any]:
    """Those parameters that are no arrays."""
    return {"A_floor": params.floor, "eps": params.eps, "halves": params.halves}
