"""Convolutions and greedy acceptance: one CUDA graph each."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from perf_gates.gpu.clock import copies_for
from perf_gates.gpu.paired_timing import Side, WrongOutputError
from perf_gates.static.shapes import CONV
from ssmspec_ref.draft.static_tree import TREE_A

from ..core import LEAST_SHORT, rotating, swept
from ..kernels.steps import bf16, kernel

WIDTH = 4
TOKENS = 8
"""Different tokens in a tree, so that a walk descends several nodes."""
BLANK = -77


def convolution(dims: str, t: int, batch: int, delayed: float) -> Side:
    """A step (t = 1) or a window of t tokens, which advances the windows."""
    c, module = CONV[dims], "conv_window" if t > 1 else "conv_step"
    sizes = (batch, t, c, WIDTH) if t > 1 else (batch, c, WIDTH)
    bytes_ = int(kernel(module, "traffic_bytes")(*sizes, state=2))
    copies = copies_for(bytes_)
    M, u = bf16(copies * batch, c, WIDTH), bf16(batch, t, c)
    weight, bias = bf16(c, WIDTH), bf16(c)
    given, out = (u, torch.empty_like(u)) if t > 1 else (u[:, 0].contiguous(), torch.empty_like(u[:, 0]))

    def expected(row: int) -> Tensor:
        seen = torch.cat((M[row, :, 1:].double(), u[row].double().T), dim=1).unfold(1, WIDTH, 1)
        y = torch.nn.functional.silu((seen * weight.double()[:, None]).sum(-1) + bias.double()[:, None]).T
        return y if t > 1 else y[0]

    def launch(slots: Tensor) -> object:
        return kernel(module)(M, given, weight, bias=bias, slots=slots, out=out)

    return rotating(f"convolution of {t}, {dims}, {batch} rows", launch, copies, out, expected, batch, bytes_, delayed)


def acceptance(dims: str, nodes: int, batch: int, delayed: float) -> Side:
    """The greedy walk of trees of STree's shape A, or of a chain.

    The tokens are the same in every run and in the side with a delay, since the length of a walk is time: drawn again, ten
    runs on an H200 lay 17 % apart.
    """
    shape = TREE_A if nodes == len(TREE_A) else tuple(range(-1, nodes - 1))
    parents = torch.tensor(shape, device="cuda").expand(batch, -1).contiguous()
    drawn = np.random.default_rng(nodes).integers(TOKENS, size=(2, batch, nodes))
    tokens, choice = torch.tensor(drawn, device="cuda")
    budget = torch.full((batch,), nodes + 1, device="cuda")
    eos = torch.tensor([TOKENS, TOKENS + 1], device="cuda")
    emitted = kernel("accept_greedy", "new_emitted")(tokens, parents)
    launches: list[Callable[[], object]] = [
        lambda: kernel("accept_greedy")(tokens, parents, choice, budget, eos=eos, out=emitted)
    ]

    def check() -> None:
        emitted.tokens.fill_(BLANK)
        launches[0]()
        for row in range(batch):
            told, wanted = emitted.tokens[row].tolist(), walked(shape, tokens[row].tolist(), choice[row].tolist())
            if told != [*wanted, *[-1] * (nodes - len(wanted))]:
                raise WrongOutputError(f"acceptance of {nodes}: row {row} emitted {told}, and the walk {wanted}")

    bytes_ = int(kernel("accept_greedy", "traffic_bytes")(batch, nodes, eos=2))
    call, count = swept(launches, delayed, LEAST_SHORT)
    return Side(f"acceptance of {nodes}, {dims}, {batch} rows", call, check, bytes_ * count, count)


def walked(parents: tuple[int, ...], tokens: list[int], choice: list[int]) -> list[int]:
    """What a row emits."""
    node, found = 0, list[int]()
    while True:
        found.append(choice[node])
        below = [i for i, parent in enumerate(parents) if parent == node and tokens[i] == choice[node]]
        if not below:
            return found
        node = below[0]
