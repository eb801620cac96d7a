"""Captured graphs that keep what only the captured call was allowed to decide. Called without a capture, all are right.

A graph of NumPy functions: `relaunched` runs the function again for a replay, on the arrays of the capture. What a fault
reads in front of the launch, on the host, is not read again.
"""

import copy
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref import conv, delta, selective, ssd
from ssmspec_ref.contract import FLOAT64, Adapter, Graph, Launch, Limits
from ssmspec_ref.shapes import Array, Lengths, Parents, Path
from ssmspec_ref.slots import FreshPool, Pool
from ssmspec_ref.ssd import tree as ssd_tree

from ...adapters.reference_parts import attention
from ...adapters.reference_parts.pools import pooled
from ..recurrences.packed import right as right_packed
from ..single import EVERYTHING, Wrong, adapter_of

POOLS = Limits({"slots": ("rows", "shuffled", "padded", "fresh")})


def relaunched(run: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
    """Records a function by running it, and replays it by running it again, into the arrays that it returned first."""
    outputs = run()

    def replay() -> None:
        again = run()
        for old, new in zip(parts(outputs), parts(again), strict=True):
            old[...] = new

    return outputs, replay


def parts(outputs: Any) -> tuple[Any, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def launch(run: Callable[..., Any], *arguments: Any) -> Launch:
    """A launch of a function over copies of its arguments."""
    held = copy.deepcopy(arguments)
    return Launch(held, lambda: run(*held), copy.deepcopy)


def right(run: Callable[..., Any]) -> Graph:
    """A pure function of NumPy arrays as a graph that is captured rightly."""

    def prepare(*arguments: Any) -> Launch:
        return launch(run, *arguments)

    return Graph(prepare, relaunched)


def slots_at_the_capture(S: Any, token: Any, params: Any) -> Launch:
    """The host reads the slots of the rows when it captures; replays use them for other rows. Bug class SLOT-SCOPE."""
    step = pooled(ssd.step)
    if not isinstance(S, Pool):
        return launch(step, S, token, params)
    read, write = S.read.copy(), S.write.copy()
    return launch(lambda pool, *rest: step(replace(pool, read=read, write=write), *rest), S, token, params)


def fresh_at_the_capture(S: Any, token: Any, params: Any) -> Launch:
    """The host reads which rows are fresh when it captures. Bug class SLOT-REUSE."""
    step = pooled(delta.step)
    if not isinstance(S, FreshPool):
        return launch(step, S, token, params)
    fresh = S.fresh.copy()
    return launch(lambda pool, *rest: step(replace(pool, fresh=fresh), *rest), S, token, params)


def mask_at_the_capture(S: Any, window: Any, params: Any, live: Array) -> Launch:
    """The host reads which tokens are live when it captures. Bug class PAD-LEAK."""
    kept, scan = live.copy(), pooled(delta.scan)
    return launch(lambda S, window, params, live: scan(S, window, params, kept), S, window, params, live)


def count_at_the_capture(M: Any, u: Array, advanced: Lengths) -> Launch:
    """The host reads how many tokens were accepted when it captures. Bug class COMMIT."""
    kept, commit = advanced.copy(), pooled(lambda *given: (conv.commit(*given),))
    return launch(lambda M, u, advanced: commit(M, u, kept)[0], M, u, advanced)


def length_at_the_capture(K: Array, V: Array, length: Lengths, path: Path) -> Launch:
    """The host reads the lengths of the cache when it captures. Bug class INDEX."""
    kept = length.copy()
    return launch(lambda K, V, length, path: attention.compact(K, V, kept, path), K, V, length, path)


def bounds_at_the_capture(S: Any, run: Any, bounds: Array, fresh: Array, params: Any) -> Launch:
    """The host cuts the run into programs when it captures: lengths are those of the captured run. Bug class CHUNK."""
    kept, scan = bounds.copy(), pooled(lambda *given: right_packed("ssd", *given))
    return launch(lambda S, run, bounds, *rest: scan(S, run, kept, *rest), S, run, bounds, fresh, params)


class KeepsTheTree:
    """The bits of a tree's mask are computed once for each shape of windows. Bug class TREE-MASK."""

    __name__ = "keeps_the_tree"

    def __call__(self, S: Any, window: Any, ancestors: Array, params: Any) -> Launch:
        kept: dict[tuple[int, ...], Array] = {}

        def scan(S: Any, window: Any, ancestors: Array, params: Any) -> Array:
            sees = kept.setdefault(ancestors.shape, ancestors.copy())
            found: Array = pooled(ssd_tree.scan)(S, window, sees, params)
            return found

        return launch(scan, S, window, ancestors, params)


def cleared_once(S: Any, window: Any, params: Any) -> Launch:
    """The sums of y begin from a workspace that is cleared in front of the launch, not in it. Bug class SCHED."""
    sums: dict[str, Array] = {}

    def scan(S: Any, window: Any, params: Any) -> tuple[Array, Array]:
        y, S_next = pooled(selective.scan)(S, window, params)
        sums["y"] = y + sums.get("y", 0.0)
        return sums["y"].copy(), S_next

    return launch(scan, S, window, params)


FREED: defaultdict[tuple[int, ...], list[Array]] = defaultdict(list)
"""Memory that was given back, by shape; what was given back last is taken first."""


def taken(values: Array) -> Array:
    """Memory with these values, if possible such as was given back."""
    room = FREED[values.shape].pop() if FREED[values.shape] else np.empty(values.shape)
    room[...] = values
    return room


def frees_what_it_reads(S: Any, token: Any, params: Any) -> Launch:
    """The bias of dt and D are copied into memory that is given back before the replays. Bug class SCHED."""
    if params.D is None or params.dt_bias is None or params.D.shape != params.dt_bias.shape:
        return launch(pooled(ssd.step), S, token, params)
    bias, D = taken(params.dt_bias), taken(params.D)
    FREED[D.shape] += [bias, D]
    return launch(lambda S, token: ssd.step(S, token, replace(params, dt_bias=bias.copy(), D=D.copy())), S, token)


def first_output(K: Array, V: Array, length: Lengths, *rest: Any) -> Launch:
    """The output is copied to the host in the capture, and this copy is read after every replay. Bug class SCHED."""
    made = launch(attention.verify_tree, K, V, length, *rest)
    copies: list[Array] = []

    def run() -> Array:
        y: Array = made.run()
        copies.append(y.copy())
        return y

    return Launch(made.inputs, run, lambda y: copies[0])


def hands_out_its_buffer(M: Any, u: Array, params: Any) -> Launch:
    """What is returned is the graph's own output, which the next replay overwrites (sgl-project/sglang#23037).
    Bug class PAD-SLOT."""
    return replace(launch(pooled(conv.scan), M, u, params), read=lambda outputs: outputs)


class CountsOnTheHost:
    """Which of two buffers holds the states is counted on the host, and so the same in every replay. Bug class REPLAY."""

    def __init__(self, S: Array, params: Any) -> None:
        self.halves, self.params, self.half = np.stack([S, S]), params, 0

    def verify(self, window: Any, parents: Parents | None = None) -> Launch:
        half, held = self.half, copy.deepcopy(window)

        def run() -> Array:
            y, self.halves[1 - half] = delta.scan(self.halves[half], held, self.params)
            return y

        return Launch((self.halves, held), run, copy.deepcopy)

    def commit(self, advanced: Lengths, path: Path) -> None:
        self.half = 1 - self.half

    def state(self) -> Array:
        return np.array(self.halves[self.half])


FAULTS: tuple[Wrong, ...] = (
    (Graph(slots_at_the_capture, relaunched), "ssd.step", "SLOT-SCOPE", FLOAT64, POOLS),
    (Graph(fresh_at_the_capture, relaunched), "delta.step", "SLOT-REUSE", FLOAT64, POOLS),
    (Graph(mask_at_the_capture, relaunched), "delta.scan_masked", "PAD-LEAK", FLOAT64, POOLS),
    (Graph(count_at_the_capture, relaunched), "conv.commit", "COMMIT", FLOAT64, POOLS),
    (Graph(length_at_the_capture, relaunched), "attention.compact", "INDEX", FLOAT64, EVERYTHING),
    (Graph(bounds_at_the_capture, relaunched), "ssd.scan_packed", "CHUNK", FLOAT64, EVERYTHING),
    (Graph(KeepsTheTree(), relaunched), "ssd.verify_tree", "TREE-MASK", FLOAT64, POOLS),
    (Graph(cleared_once, relaunched), "selective.scan", "SCHED", FLOAT64, POOLS),
    (Graph(frees_what_it_reads, relaunched), "ssd.step", "SCHED", FLOAT64, EVERYTHING),
    (Graph(first_output, relaunched), "attention.verify_tree", "SCHED", FLOAT64, EVERYTHING),
    (Graph(hands_out_its_buffer, relaunched), "conv.scan", "PAD-SLOT", FLOAT64, POOLS),
    (Graph(CountsOnTheHost, relaunched), "delta.buffered_step", "REPLAY", FLOAT64, EVERYTHING),
)
"""Each with its operation, its bug class, what it declares and what it takes."""


def adapter() -> Adapter:
    return adapter_of("graphs", FAULTS)
