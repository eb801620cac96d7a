"""Scans in chunks of 16, 32 or 64 tokens that take a mask, a decay, an end or a number wrongly; and masks of rows."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from ssmspec_ref import delta, selective, ssd
from ssmspec_ref.decay_matrix import pieces
from ssmspec_ref.functions import silu
from ssmspec_ref.records import each, masked
from ssmspec_ref.shapes import Array, Mask

from ...judge.draw import stored
from ...mistakes.mistake import Mistake, before, instead
from ...mistakes.operators import live_only, of_rows
from ..fault import planted
from ..right import packed_scan

CHUNKS, PACKED = (16, 32, 64), (8, 16, 32, 64)
Scanned = tuple[Array, Array]


def cut(window: Any, begin: int, end: int) -> Any:
    return each(lambda a: a[:, begin:end], window)


def ssd_decay(window: Any, params: Any) -> Array:
    """The log decay of every token, as an array that multiplies a state once an exponential was taken."""
    return np.asarray((ssd.step_size(window.dt, params) * params.A)[..., None, None])


def delta_decay(window: Any, params: Any) -> Array:
    return np.asarray(window.g[..., None] if window.g.ndim == 4 else window.g[..., None, None])


def selective_decay(window: Any, params: Any) -> Array:
    return np.asarray(selective.step_size(window.dt, params)[..., None] * params.A)


def ssd_own(S: Array, window: Any, params: Any) -> Array:
    """What every token reads of its own input."""
    B, C = (ssd.per_head(a, window.x.shape[2]) for a in (window.B, window.C))
    y = np.einsum("bthn, bthn, bth, bthp -> bthp", B, C, ssd.step_size(window.dt, params), window.x)
    return y if window.z is None else y * silu(window.z)


def delta_own(S: Array, window: Any, params: Any) -> Array:
    """What every token reads of its own correction."""
    after = delta.states(S, window, params)[1]
    before = np.concatenate([S[:, None], after[:, :-1]], axis=1)
    q, _ = delta.keys_and_queries(window.q, window.k, window.v.shape[2], params)
    return np.einsum("bthkv, bthk -> bthv", after - np.exp(delta_decay(window, params)) * before, q)


def strict_tail(rule: Any, own: Callable[..., Array], chunk: int, S: Array, window: Any, params: Any) -> Scanned:
    """In a last chunk of less than {chunk} tokens the mask is strict: a token does not read its own input."""
    y, S_next = rule.scan(S, window, params)
    rest = np.arange(y.shape[1]) >= y.shape[1] - y.shape[1] % chunk
    return y - np.where(rest[:, None, None], own(S, window, params), 0.0), S_next


def decay_of_a_chunk_in_bf16(
    rule: Any, log_decay: Callable[..., Array], chunk: int, S: Array, window: Any, params: Any
) -> Scanned:
    """The decay of a whole chunk of {chunk} tokens is rounded to bf16 before it multiplies the carried state."""
    decays, outputs = log_decay(window, params), []
    for begin, end in pieces(decays.shape[1], chunk):
        left = np.exp(decays[:, begin:end].sum(axis=1))
        y, after = rule.scan(S, cut(window, begin, end), params)
        S = after + (stored(left, "bf16") - left) * S
        outputs.append(y)
    return np.concatenate(outputs, axis=1), S


def decay_of_a_full_chunk_in_bf16(
    rule: Any, log_decay: Callable[..., Array], chunk: int, S: Array, window: Any, params: Any
) -> Scanned:
    """The decay of a full chunk of {chunk} tokens is rounded to bf16 before it multiplies the carried state. The last
    chunk is right if it is not full."""
    tokens = log_decay(window, params).shape[1]
    whole, parts = tokens // chunk * chunk, []
    if whole:
        y, S = decay_of_a_chunk_in_bf16(rule, log_decay, chunk, S, cut(window, 0, whole), params)
        parts.append(y)
    if whole < tokens:
        y, S = rule.scan(S, cut(window, whole, tokens), params)
        parts.append(y)
    return np.concatenate(parts, axis=1), S


def chunk_past_the_sequence(rule: str, chunk: int, S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> Scanned:
    """The last chunk of {chunk} tokens ends with the run, not with its sequence: later sequences enter the final state."""
    y, _ = packed_scan(rule, S, run, bounds, fresh, params)
    past = [end if begin == end else end + -(end - begin) % chunk for begin, end in pairwise(bounds)]
    return y, ended(rule, S, run, bounds, np.minimum(past, bounds[-1]), fresh, params)


def ended(rule: str, S: Array, run: Any, bounds: Array, ends: Array, fresh: Array, params: Any) -> Array:
    """The states of sequences that end elsewhere than their bounds say."""
    made = np.where(of_rows(fresh, S), 0.0, S)
    for b, (begin, end) in enumerate(zip(bounds, ends, strict=False)):
        if end > begin:
            lone, new = np.array([0, end - begin]), np.zeros(1, dtype=bool)
            made[b] = packed_scan(rule, made[b : b + 1], cut(run, begin, end), lone, new, params)[1][0]
    return made


def chunks_of_the_mean(rule: str, chunk: int, S: Array, run: Any, bounds: Array, fresh: Array, params: Any) -> Scanned:
    """The number of chunks of {chunk} tokens is that of the mean length: the end of a longer sequence is not read."""
    y, _ = packed_scan(rule, S, run, bounds, fresh, params)
    room = -(-bounds[-1] // (len(S) * chunk)) * chunk
    ends = np.minimum(bounds[1:], bounds[:-1] + room)
    for stop, end in zip(ends, bounds[1:], strict=True):
        y[:, stop:end] = 0.0
    return y, ended(rule, S, run, bounds, ends, fresh, params)


def first_row(own: Mask) -> Mask:
    """Every row is masked with the mask of row 0."""
    return np.repeat(own[:1], len(own), axis=0)


def dead_states_decay(S: Array, window: Any, params: Any, live: Mask) -> Scanned:
    """A dead token is left out, but its gate g decays the state."""
    outputs = []
    for t in range(live.shape[1]):
        lives = live[:, t, None, None, None]
        with np.errstate(over="ignore", invalid="ignore"):  # what is dead may be large
            y, after = delta.scan(S, cut(masked(window, live), t, t + 1), params)
            S = np.where(lives, after, np.exp(delta_decay(window, params)[:, t]) * S)
        outputs.append(np.where(lives, y[:, 0, :, :, None], 0.0)[..., 0])
    return np.stack(outputs, axis=1), S


def dead_channel_gates_decay(S: Array, window: Any, params: Any, live: Mask) -> Scanned:
    """A dead token is left out, but its gate g decays the state, where g has an entry for each key channel."""
    return dead_states_decay(S, window, params, live) if window.g.ndim == 4 else delta.scan(S, window, params, live)


def unmasked(name: str, says: str, *read: str) -> Mistake:
    """A scan that masks these inputs by itself and no others."""
    outputs = before(name, says, **dict.fromkeys(read, live_only), live=None)
    return outputs.after(y=lambda y, live: np.where(of_rows(live, y), y, 0.0))


def named(wrong: Callable[..., Any], *given: Any, chunk: int | None = None) -> Mistake:
    """A fault of one rule, and of one size of chunk, with the name and the sentence that say so."""
    name = wrong.__name__ + ("" if chunk is None else f"_of_{chunk}")
    run = partial(wrong, *given) if chunk is None else partial(wrong, *given, chunk)
    return instead(name, (wrong.__doc__ or "").format(chunk=chunk), run)


RULES: dict[str, tuple[Any, Callable[..., Array]]] = {
    "ssd": (ssd, ssd_decay),
    "delta": (delta, delta_decay),
    "selective": (selective, selective_decay),
}
DEAD = "The step dt of a dead token is not masked: it decays the state, though the token writes nothing."
FAULTS = planted(
    *((named(strict_tail, ssd, ssd_own, chunk=size), "ssd.scan", "CHUNK") for size in CHUNKS),
    *((named(strict_tail, delta, delta_own, chunk=size), "delta.scan", "CHUNK") for size in CHUNKS),
    *(
        (named(wrong, *of, chunk=size), f"{rule}.scan", "NUMERIC")
        for wrong in (decay_of_a_chunk_in_bf16, decay_of_a_full_chunk_in_bf16)
        for rule, of in RULES.items()
        for size in CHUNKS
    ),
    *(
        (named(wrong, rule, chunk=size), f"{rule}.scan_packed", "CHUNK")
        for wrong in (chunk_past_the_sequence, chunks_of_the_mean)
        for rule in ("ssd", "delta")
        for size in PACKED
    ),
    *(
        (before("mask_of_the_first_row", first_row.__doc__ or "", live=first_row), f"{rule}.scan_masked", "SLOT-SCOPE")
        for rule in (*RULES, "mamba3", "shortconv")
    ),
    (
        before(
            "inputs_masked_by_the_first_row",
            "Every row of inputs is masked with the mask of row 0.",
            live=first_row,
        ),
        "conv.scan_masked",
        "SLOT-SCOPE",
    ),
    (
        unmasked(
            "dead_gates_decay",
            "The gate g of a dead token is not masked: it decays the state, though the token writes nothing.",
            "q",
            "k",
            "v",
            "beta",
        ),
        "delta.scan_masked",
        "PAD-LEAK",
    ),
    (dead_states_decay, "delta.scan_masked", "PAD-LEAK"),
    (dead_channel_gates_decay, "delta.scan_masked", "PAD-LEAK"),
    *(
        (unmasked("dead_steps_decay", DEAD, "x", "B", "C", "z"), f"{rule}.scan_masked", "PAD-LEAK")
        for rule in ("ssd", "selective")
    ),
)
