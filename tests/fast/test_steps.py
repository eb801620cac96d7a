"""A step waits for no value: nothing between proposal and commit reads a tensor on the host or counts a mask.

On a GPU each of these operations would stop the queue until the value is there, and none can be captured in a graph.
"""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.suite.graph.tape import waits as waits_for_the_host
from ssmspec_fast.draft.nothing import Nothing
from ssmspec_fast.engine.sequences import Sequences
from ssmspec_fast.engine.window import Proposal, Window
from ssmspec_fast.methods import Method
from ssmspec_fast.methods.joint import JointByLag
from ssmspec_fast.methods.plain import Plain
from ssmspec_fast.operations.torch_ops import TorchOperations

from .drafters import CHAINS, NODES
from .models import ONE_OF_EACH, drawn, prompts
from .runs import begun, step

pytestmark = pytest.mark.usefixtures("as_on_a_gpu")


class Waiting(TorchDispatchMode):
    """Writes down every operation that needs a value on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if waits_for_the_host(str(function), args):
            self.found.append(str(function))
        return function(*args, **kwargs or {})


def chain(sequences: Sequences, slots: torch.Tensor, tree: bool) -> Proposal:
    """A window without skill: the root and its neighbours in the vocabulary."""
    tokens = (sequences.roots(slots)[:, None] + torch.arange(NODES)) % 61
    parents = torch.tensor([-1, 0, 0, 1]).expand(len(slots), -1) if tree else None
    return Proposal(Window(tokens, slots, None, parents))


def waits(name: str, method: Method) -> list[str]:
    plain, places = method.name == "plain", [2, 0]
    decoder, sequences = begun(
        drawn(name), method, prompts(1, (4, 2)), places, cache=24, window=1 if plain else NODES, ends=((3,), ((4, 5),)),
        operations=TorchOperations(),
    )  # fmt: skip
    slots = torch.tensor([2, -1, 0])
    for _ in range(2):
        with Waiting() as waiting:
            proposal = Nothing().propose(sequences, slots) if plain else chain(sequences, slots, method.name == "tree")
            step(decoder, sequences, proposal, fits=True)  # counted, as an engine does
    return waiting.found


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_step_of_plain_decoding_waits_for_nothing(name: str) -> None:
    assert waits(name, Plain()) == []


@pytest.mark.parametrize("method", CHAINS)
@pytest.mark.parametrize("name", ["mamba", "bamba", "qwen3_5"])
def test_a_step_of_a_window_waits_for_nothing(name: str, method: str) -> None:
    assert waits(name, CHAINS[method]()) == []


def test_joint_attainment_by_lag_waits_once_a_step() -> None:
    """For the length of its feed."""
    assert waits("bamba", JointByLag()) == ["aten._local_scalar_dense.default"]


WAITS = (lambda x: int(x.max()), lambda x: x[x > 1], lambda x: x.index_put_((x > 1,), x[0]), lambda x: x.nonzero(),
         lambda x: bool(x.any()))  # fmt: skip


@pytest.mark.parametrize("wait", WAITS)
def test_a_planted_wait_is_seen(wait: Any) -> None:
    with Waiting() as waiting:
        wait(torch.arange(3))
    assert waiting.found


def test_padding_rows_write_nothing_and_the_whole_batch_may_be_padding() -> None:
    decoder, sequences = begun(
        drawn("bamba"), CHAINS["tree"](), [[5, 6]], [0], slots=2, cache=16, window=NODES, operations=TorchOperations()
    )
    held = (*decoder.pools.layers[0].__dict__.values(), sequences.tokens, sequences.length)
    before = [x.clone() for x in held]
    step(decoder, sequences, chain(sequences, torch.tensor([-1, -1]), tree=True))
    after = (*decoder.pools.layers[0].__dict__.values(), sequences.tokens, sequences.length)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
