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
from ssmspec_ref.ssd import tree as ssd_tree

from ...adapters.reference_parts import attention
from ...adapters.reference_parts.pools import pooled
from ...mistakes.mistake import inputs, parameters, put
from ..fault import EVERYTHING, adapter_of, planted
from ..right import right as right_of

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


def kept(name: str, says: str, operation: str, *names: str) -> Graph:
    """The host reads some inputs when it captures, and a replay does not read them again."""
    run = right_of(operation)
    known = parameters(run)

    def prepare(*arguments: Any) -> Launch:
        given = inputs(known, arguments)
        first = {one: given[one].copy() for one in names if one in given}
        return launch(lambda *now: run(*put(known, now, first)), *arguments)

    prepare.__name__, prepare.__doc__ = name, says
    return Graph(prepare, relaunched)


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


FAULTS = planted(
    *(
        (kept(name, says, operation, *names), operation, bug_class, FLOAT64, limits)
        for name, says, operation, bug_class, limits, *names in (
            (
                "slots_at_the_capture",
                "The host reads the slots of the rows when it captures; replays use them for other rows. Bug class "
                "SLOT-SCOPE.",
                "ssd.step",
                "SLOT-SCOPE",
                POOLS,
                "read",
                "write",
            ),
            (
                "fresh_at_the_capture",
                "The host reads which rows are fresh when it captures. Bug class SLOT-REUSE.",
                "delta.step",
                "SLOT-REUSE",
                POOLS,
                "fresh",
            ),
            (
                "mask_at_the_capture",
                "The host reads which tokens are live when it captures. Bug class PAD-LEAK.",
                "delta.scan_masked",
                "PAD-LEAK",
                POOLS,
                "live",
            ),
            (
                "count_at_the_capture",
                "The host reads how many tokens were accepted when it captures. Bug class COMMIT.",
                "conv.commit",
                "COMMIT",
                POOLS,
                "advanced",
            ),
            (
                "length_at_the_capture",
                "The host reads the lengths of the cache when it captures. Bug class INDEX.",
                "attention.compact",
                "INDEX",
                EVERYTHING,
                "length",
            ),
            (
                "bounds_at_the_capture",
                "The host cuts the run into programs when it captures: lengths are those of the captured run. Bug class "
                "CHUNK.",
                "ssd.scan_packed",
                "CHUNK",
                EVERYTHING,
                "bounds",
            ),
        )
    ),
    (Graph(KeepsTheTree(), relaunched), "ssd.verify_tree", "TREE-MASK", FLOAT64, POOLS),
    (Graph(cleared_once, relaunched), "selective.scan", "SCHED", FLOAT64, POOLS),
    (Graph(frees_what_it_reads, relaunched), "ssd.step", "SCHED"),
    (Graph(first_output, relaunched), "attention.verify_tree", "SCHED"),
    (Graph(hands_out_its_buffer, relaunched), "conv.scan", "PAD-SLOT", FLOAT64, POOLS),
    (Graph(CountsOnTheHost, relaunched), "delta.buffered_step", "REPLAY"),
)


def adapter() -> Adapter:
    return adapter_of("graphs", FAULTS)
