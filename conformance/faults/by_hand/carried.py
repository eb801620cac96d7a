"""Scans that read a carried state too early, sum over some of the states only, or begin a sequence from another's state."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref import selective, ssd
from ssmspec_ref.decay_matrix import pieces
from ssmspec_ref.functions import silu
from ssmspec_ref.shapes import Array

from ...mistakes import operators
from ...mistakes.mistake import Mistake, before
from ...mistakes.operators import drop, nonempty_before
from ..fault import planted
from .chunks import CHUNKS, Scanned, cut, named


def ssd_read(S: Array, window: Any) -> Array:
    """What every token reads of the state given for it (b t h p n)."""
    return np.einsum("bthpn, bthn -> bthp", S, ssd.per_head(window.C, window.x.shape[2]))


def selective_read(S: Array, window: Any) -> Array:
    """What every token reads of the state given for it (b t d n)."""
    return np.einsum("btdn, btn -> btd", S, window.C)


def carried_without_own_decay(
    rule: Any, read: Callable[..., Array], chunk: int, S: Array, window: Any, params: Any
) -> Scanned:
    """What a token reads of the state carried into its chunk of {chunk} tokens lacks the token's own decay; the state is
    right."""
    outputs = []
    for begin, end in pieces(window.x.shape[1], chunk):
        own = cut(window, begin, end)
        after = rule.states(S, replace(own, x=np.zeros_like(own.x)), params)[1]
        more = read(np.concatenate([S[:, None], after[:, :-1]], axis=1) - after, own)
        y, S = rule.scan(S, own, params)
        outputs.append(y + (more if own.z is None else more * silu(own.z)))
    return np.concatenate(outputs, axis=1), S


def tail_of_the_states(chunk: int) -> Mistake:
    def tail(C: Array) -> Array:
        states = C.shape[-1]
        return np.asarray(drop(-1, states - states % chunk if states > chunk else states, 0.0)(C))

    says = (
        f"The sum over the states in an output leaves out the last ones, as many as do not fill a vector of {chunk}, if "
        f"there are more than {chunk}; the state is right."
    )
    return before(f"tail_of_the_states_of_{chunk}", says, C=tail)


def state_of_the_nonempty(S: Array, bounds: Array) -> Array:
    """The initial state of a sequence is found by the number of sequences before it that are not empty."""
    return S[nonempty_before(bounds)]


VECTORS = (4, 8)
READS: dict[str, tuple[Any, Callable[..., Array]]] = {"ssd": (ssd, ssd_read), "selective": (selective, selective_read)}
FAULTS = planted(
    *(
        (named(carried_without_own_decay, *of, chunk=size), f"{rule}.scan", "CHUNK")
        for rule, of in READS.items()
        for size in CHUNKS
    ),
    *(
        (tail_of_the_states(size), f"{rule}.{call}", "INDEX")
        for rule in READS
        for call in ("step", "scan")
        for size in VECTORS
    ),
    *((before(S=state_of_the_nonempty), f"{rule}.scan_packed", "SLOT-SCOPE") for rule in ("ssd", "delta")),
    *(
        (
            before(
                "state_of_the_nonempty_but_of_the_empty",
                "The initial state of a sequence is found by the number of sequences before it that are not empty. An empty "
                "sequence keeps its own.",
                S=operators.state_of_the_nonempty,
            ),
            f"{rule}.scan_packed",
            "SLOT-SCOPE",
        )
        for rule in ("ssd", "delta")
    ),
)
