"""What an implementation declares, how it is reached, and what may be said of it.

A numeric contract is how an implementation says it computes; the error bound it is held to follows from that and from the
data (`error_bounds`). There are no free tolerances. What is declared is tested; what is not declared is inapplicable, with
the reason shown.

An adapter is plain data: names, contracts, and functions. A pure operation has the signature of the reference's function
that `OPERATIONS` names, over the same records of float64 NumPy arrays; the values are exact in the formats that the contract
declares, so that storing them in those formats changes nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal, Protocol, TypeAlias

from .shapes import Array, Mask

Storage: TypeAlias = Literal["fp64", "fp32", "fp16", "bf16"]
Dot: TypeAlias = Literal["ieee", "tf32x3", "tf32", "fp16", "bf16"]
Order: TypeAlias = Literal["sequential", "chunked", "output_only"]

UNIT_ROUNDOFF: dict[str, float] = {
    "fp64": 2.0**-53,
    "fp32": 2.0**-24,
    "tf32": 2.0**-11,
    "fp16": 2.0**-11,
    "bf16": 2.0**-8,
}
"""u of each format, round to nearest: half the distance from 1 to the next number."""

OPERATIONS: dict[str, str] = {
    "conv.step": "conv.step(M, u, params) -> y, M",
    "conv.scan": "conv.scan(M, u, params) -> y, M",
    "conv.scan_masked": "conv.scan_masked(M, u, live, params) -> y, M",
    "conv.verify_tree": "conv_tree.scan(M, u, parents, params) -> y",
    "conv.commit": "conv.commit(M, u, advanced) -> M",
    "conv.commit_path": "conv.commit_path(M, u, path) -> M",
    "selective.step": "selective.step(S, token, params) -> y, S",
    "selective.scan": "selective.scan(S, window, params) -> y, S",
    "selective.scan_masked": "selective.scan(S, window, params, live) -> y, S",
    "selective.verify_tree": "selective_tree.scan(S, window, ancestors, params) -> y",
    "ssd.step": "ssd.step(S, token, params) -> y, S",
    "ssd.scan": "ssd.scan(S, window, params) -> y, S",
    "ssd.scan_masked": "ssd.scan(S, window, params, live) -> y, S",
    "ssd.verify_tree": "ssd_tree.scan(S, window, ancestors, params) -> y",
    "delta.step": "delta.step(S, token, params) -> y, S",
    "delta.scan": "delta.scan(S, window, params) -> y, S",
    "delta.scan_masked": "delta.scan(S, window, params, live) -> y, S",
    "delta.verify_tree": "delta_tree.scan(S, window, ancestors, params) -> y",
    "layer.prefill": "a prompt",
    "layer.step": "a prompt, then single tokens from the cache",
    "layer.continue": "a prompt, then several tokens at once from the cache",
    "layer.left_pad": "rows of unequal length padded on the left, then single tokens",
    "layer.right_pad": "rows of unequal length padded on the right, then single tokens",
    "layer.rollback": "a prompt, rejected tokens undone by the layer's own means, then single tokens",
}
"""Every operation that can be judged: a function of the reference, or what a stateful layer is taken through."""


@dataclass(frozen=True)
class NumericContract:
    """How an implementation computes.

    `state` is how the state is stored between two calls, and after every token where `order` is sequential and the state is
    written each time; `io` how outputs are stored; `accumulate` the arithmetic of everything else; `dot` how the operands of
    a matrix product are rounded before it; `order` the order of evaluation.
    """

    state: Storage = "fp32"
    io: Storage = "fp32"
    accumulate: Storage = "fp32"
    dot: Dot = "ieee"
    order: Order = "sequential"

    def __str__(self) -> str:
        parts: list[str] = [self.accumulate]
        parts += [f"{name}={value}" for name, value in (("state", self.state), ("io", self.io)) if value != self.accumulate]
        parts += [] if self.dot == "ieee" else [f"dot={self.dot}"]
        return "/".join([*parts, self.order])


class Verdict(IntEnum):
    """What may be said of a case; the worst verdict of a group is the group's."""

    PASS = 0
    INAPPLICABLE = 1
    KNOWN_FAILURE = 2
    UNKNOWN = 3
    FAIL = 4


@dataclass(frozen=True)
class Limits:
    """What an operation takes; cases outside are not run, and the reason is shown.

    `options` lists the values of an option that are offered ({"D": ("head",), "z": ("off",)}); an option that is not named is
    offered in full. `sizes` gives the smallest and the largest size of an axis ({"g": (1, 1), "w": (2, 4)}).
    """

    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    reason: str = "outside the limits that the adapter declares"


@dataclass(frozen=True)
class Capability:
    """One operation of a subject: the function that does it, how it computes, and what it takes.

    A pure operation is called as `OPERATIONS` says and returns what it says, in that order. A `layer.` operation is
    `run(layer, rows) -> Layer`: given a record of `ssmspec_ref.layer`, a layer with those weights that has seen nothing.
    """

    run: Callable[..., Any]
    contract: NumericContract
    limits: Limits = Limits()


@dataclass(frozen=True)
class Subject:
    """One thing under judgement (a kernel, a module, a layer family): the operations that it has, and why it lacks others.

    `absent` gives the reason for an operation by its name, or by its group ("conv"); a missing entry reads "not declared".
    """

    name: str
    capabilities: Mapping[str, Capability]
    absent: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Adapter:
    """An implementation under judgement. `version` is the implementation's; `homepage` is where faults are reported."""

    name: str
    version: str
    subjects: tuple[Subject, ...]
    homepage: str = ""


class Layer(Protocol):
    """A stateful layer with given weights, from residual stream to residual stream (`ssmspec_ref.layer`).

    It may have an attribute `used`: the record of the weights as loaded, where a weight could not be stored exactly (A from
    A_log). It may differ from the record given by rounding only.
    """

    def forward(self, u: Array, live: Mask | None = None) -> Array:
        """Advance by a window of tokens from the layer's own cache, and return the outputs.

        `live` marks the real tokens of a padded batch; the outputs at the others are not judged.
        """
        ...

    def state(self) -> tuple[Array, Array]:
        """Copies of M, the last w inputs of the convolution, and of S, the state, both as the reference lays them out."""
        ...

    def rollback(self, tokens: int) -> None:
        """Undo the last `tokens` tokens by the layer's own means."""
        ...
