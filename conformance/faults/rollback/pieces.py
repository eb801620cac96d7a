"""Mamba-3 with one of its four pieces kept of a draft, or read of a node that is not on the path."""

from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref import mamba3
from ssmspec_ref.contract import FLOAT64
from ssmspec_ref.mamba3 import finish, normed, packed, per_head, pieces_of, turn, values
from ssmspec_ref.mamba3 import tree as over_trees
from ssmspec_ref.shapes import Array

from ...mistakes.operators import in_order
from ..fault import planted
from ..recurrences.short_convolutions import AGAIN, Rolled


def previous_node_in_place_of_the_parent(S: Array, window: Any, ancestors: Array, params: Any) -> Array:
    """The trapezoid of a node ends at the node before it in the packed tree, a sibling perhaps, not at its parent."""
    held = pieces_of(S, window.x.shape[3], window.angle.shape[2], params)
    run, live = over_trees.inputs(window, params), np.einsum("btt -> bt", ancestors)
    _, keys, parents = over_trees.rotated(held, run, ancestors, params)
    wrong = over_trees.rotated(held, run, in_order(ancestors), params)[2]
    found = [over_trees.behind(a, s, at) for at in (parents, wrong) for a, s in ((run.x, held.value), (keys, held.key))]
    moved = np.einsum("bthrp, bthrn -> bthpn", values(found[2], params), found[3])
    moved = moved - np.einsum("bthrp, bthrn -> bthpn", values(found[0], params), found[1])
    y = over_trees.scan(S, window, ancestors, params)
    angle = np.mod(held.angle[:, None] + np.einsum("btj, bjhf -> bthf", ancestors, run.turned), mamba3.TURN)
    C = per_head(normed(window.C, params.C_norm, params.eps), params.heads) + params.C_bias
    q = turn(C, angle[:, :, :, None], params)
    weight = np.exp(run.log_decay) * run.before
    o = np.einsum("bth, bthpn, bthrn -> bthrp", weight, moved, q)
    return np.where(live[:, :, None, None], y + finish(o, window.z, params), 0.0)


def angles_of_all_nodes_before(S: Array, window: Any, ancestors: Array, params: Any) -> Array:
    """The running angle of a node adds up all nodes before it in the packed tree, not those of its path."""
    run = over_trees.inputs(window, params)
    held = pieces_of(S, window.x.shape[3], window.angle.shape[2], params)
    live = np.einsum("btt -> bt", ancestors)
    run = replace(run, turned=np.where(live[..., None, None], run.turned, 0.0))
    wanted, path = (np.einsum("btj, bjhf -> bthf", m, run.turned) for m in (in_order(ancestors), ancestors))
    own = np.where(np.tril(ancestors, -1), np.arange(ancestors.shape[1]), -1).max(axis=2)
    off = wanted - path
    run = replace(
        run, turned=run.turned + off - np.where((own < 0)[..., None, None], 0.0, over_trees.behind(off, 0 * held.angle, own))
    )
    y = over_trees.read(held, run, window, ancestors, params)
    return np.where(live[:, :, None, None], y, 0.0)


class KeepsOnePiece(Rolled):
    """One piece of the state stays as the whole draft left it."""

    piece = ""

    def columns(self, kept: Array, whole: Array, rejected: Array) -> Array:
        inner: Any = self.inner
        right, left = (pieces_of(a, inner.mixer.channels, inner.mixer.angles, inner.mixer.params) for a in (kept, whole))
        return packed(replace(right, **{self.piece: getattr(left, self.piece)}))


def keeps(name: str, says: str, piece: str) -> type[KeepsOnePiece]:
    return type(name, (KeepsOnePiece,), {"piece": piece, "__doc__": says})


FAULTS = planted(
    (previous_node_in_place_of_the_parent, "mamba3.verify_tree", "TREE-TOPO"),
    (angles_of_all_nodes_before, "mamba3.verify_tree", "TREE-MASK"),
    *(
        (keeps(name, says, piece), "mamba3.verify_snapshots", "ROLLBACK", FLOAT64, AGAIN)
        for name, says, piece in (
            ("KeepsTheValue", "The previous value is that of the last draft, after a rejection too.", "value"),
            ("KeepsTheKey", "The previous key is that of the last draft, after a rejection too.", "key"),
            (
                "KeepsTheAngle",
                "The angle is not rolled back: the next token is rotated as if all drafts had been accepted.",
                "angle",
            ),
            ("KeepsTheSum", "Angle, key and value are rolled back, and the matrix is not.", "S"),
        )
    ),
)
