"""What a sequence takes between two windows, counted by the allocations that are alive, not by what a method declares."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ssmspec_fast.engine.state import Pools
from ssmspec_fast.methods import Method
from ssmspec_fast.methods.activation_replay import ActivationReplay
from ssmspec_fast.methods.plain import Plain
from ssmspec_fast.methods.replay_buffer import ReplayBuffer
from ssmspec_fast.methods.snapshots import Snapshots
from ssmspec_fast.methods.tree import Tree
from ssmspec_fast.operations.torch_ops import TorchOperations

from .drafters import NODES, Skilled
from .models import prompts
from .runs import begun
from .test_methods import answers, go_on, model_of

LAYERS = 3
STATE, WINDOW, ENTRY = 6 * 8 * 5, 68 * 4, 6 * 8 + 6 + 2 * 5
"""Elements of one layer of the model drawn: h p n; c w; and x, dt, B of a token."""
RING = 9


def alive() -> dict[int, int]:
    """The memory of every tensor that anything holds. Units: bytes."""
    gc.collect()
    found = [x.untyped_storage() for x in gc.get_objects() if issubclass(type(x), torch.Tensor)]
    return {memory.data_ptr(): memory.nbytes() for memory in found}


def taken(made: Callable[[], Method], slots: int) -> int:
    """Bytes that a decoder has taken behind some windows: what is alive only while it is."""
    model, given, method = model_of("mamba2"), prompts(4, (3, 5)), made()
    nodes = 1 if type(method) is Plain else NODES
    drafter = Skilled(answers("mamba2", 4, (3, 5), 30), nodes, 0.7, tree=isinstance(method, Tree))
    decoder, sequences = begun(model, method, given, [0, 1], slots=slots, window=nodes, operations=TorchOperations())
    go_on(decoder, sequences, torch.tensor([0, 1]), drafter, 4)
    held = alive()
    del decoder, method
    return sum(held.values()) - sum(size for at, size in alive().items() if at in held)


def row_bytes(made: Callable[[], Method]) -> float:
    """What one sequence more takes."""
    return (taken(made, 9) - taken(made, 4)) / 5


def expected(states: int, entries: int, cursors: int) -> int:
    """Of each layer the window of the convolution, states and entries in fp32; the length and other cursors, of 8 bytes."""
    return 4 * LAYERS * (WINDOW + states * STATE + entries * ENTRY) + 8 * (1 + cursors)


CASES: dict[str, tuple[Callable[[], Method], tuple[int, int, int]]] = {
    "plain": (Plain, (1, 0, 0)),
    "snapshots": (Snapshots, (1 + NODES, 0, 1)),
    "activation replay": (ActivationReplay, (1, 0, 0)),
    "tree": (Tree, (1, 0, 0)),
    "replay buffer": (lambda: ReplayBuffer(RING), (1, RING, 2)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_row_between_two_windows_takes_its_states_its_ring_and_its_cursors(name: str) -> None:
    made, sizes = CASES[name]
    assert row_bytes(made) == expected(*sizes)


class Hoarding(ActivationReplay):
    """Keeps the states of before beside those of its pools, where no pool tells of them."""

    def new_pools(self, *args: Any, **kwargs: Any) -> Pools:
        pools = super().new_pools(*args, **kwargs)
        self.before = [pools.recurrent(layer).S.clone() for layer in range(LAYERS)]
        return pools


def test_a_second_state_that_no_pool_tells_of_is_counted() -> None:
    assert row_bytes(Hoarding) == expected(2, 0, 0)
