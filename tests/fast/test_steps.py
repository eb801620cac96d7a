"""A step waits for no value: nothing between proposal and commit reads a tensor on the host or counts a mask.

On a GPU each of these operations would stop the queue until the value is there, and none can be captured in a graph.
"""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ssmspec_fast.accept.greedy import Greedy
from ssmspec_fast.draft.nothing import Nothing
from ssmspec_fast.engine.decoder import Decoder
from ssmspec_fast.engine.sequences import Sequences, new_sequences
from ssmspec_fast.engine.window import Proposal, Window
from ssmspec_fast.methods import Method
from ssmspec_fast.methods.joint import JointByLag
from ssmspec_fast.methods.plain import Plain
from ssmspec_fast.operations import torch_attention
from ssmspec_fast.operations.torch_ops import TorchOperations

from .drafters import CHAINS, NODES
from .models import ONE_OF_EACH, drawn, prompts

WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique", "repeat_interleave.Tensor")


class Waiting(TorchDispatchMode):
    """Writes down every operation that needs a value on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(function)
        indices = args[1] if name.startswith(("aten.index.", "aten.index_put")) else ()
        masked = any(isinstance(x, torch.Tensor) and x.dtype == torch.bool for x in indices)
        if masked or any(name.startswith(f"aten.{wait}") for wait in WAITS):
            self.found.append(name)
        return function(*args, **kwargs or {})


def chain(sequences: Sequences, slots: torch.Tensor, tree: bool) -> Proposal:
    """A window without skill: the root and its neighbours in the vocabulary."""
    tokens = (sequences.roots(slots)[:, None] + torch.arange(NODES)) % 61
    parents = torch.tensor([-1, 0, 0, 1]).expand(len(slots), -1) if tree else None
    return Proposal(Window(tokens, slots, None, parents))


def step(decoder: Decoder, proposal: Proposal, sequences: Sequences) -> None:
    feed = decoder.feed(proposal.window, sequences, fits=True)  # counted, as an engine does
    verdict = Greedy()(proposal, decoder.verify(feed), sequences, decoder.operations)
    decoder.commit(feed, verdict)
    sequences.commit(verdict)


def waits(name: str, method: Method, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(torch_attention, "reach", lambda committed, capacity: capacity)  # as on a GPU
    decoder = Decoder(
        drawn(name), method, TorchOperations(), slots=3, cache=24, window=1 if method.name == "plain" else NODES
    )
    sequences = new_sequences(3, 30, (3,), ((4, 5),), "cpu")
    slots, given = torch.tensor([2, -1, 0]), prompts(1, (4, 2))
    with torch.no_grad():
        decoder.prefill(given, [2, 0])
        for slot, prompt in zip((2, 0), given, strict=True):
            sequences.add(slot, prompt, 12, 0)
        for _ in range(2):
            with Waiting() as waiting:
                plain = method.name == "plain"
                proposal = Nothing().propose(sequences, slots) if plain else chain(sequences, slots, method.name == "tree")
                step(decoder, proposal, sequences)
    return waiting.found


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_step_of_plain_decoding_waits_for_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert waits(name, Plain(), monkeypatch) == []


@pytest.mark.parametrize("method", CHAINS)
@pytest.mark.parametrize("name", ["mamba", "bamba", "qwen3_5"])
def test_a_step_of_a_window_waits_for_nothing(name: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert waits(name, CHAINS[method](), monkeypatch) == []


def test_joint_attainment_by_lag_waits_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the length of its feed."""
    assert waits("bamba", JointByLag(), monkeypatch) == ["aten._local_scalar_dense.default"]


def test_a_planted_wait_is_seen() -> None:
    x = torch.arange(3)
    for plant in (lambda: int(x.max()), lambda: x[x > 1], lambda: x.index_put_((x > 1,), x[0]), lambda: bool(x.any())):
        with Waiting() as waiting:
            plant()
        assert waiting.found


def test_padding_rows_write_nothing_and_the_whole_batch_may_be_padding() -> None:
    decoder = Decoder(drawn("bamba"), CHAINS["tree"](), TorchOperations(), slots=2, cache=16, window=NODES)
    sequences = new_sequences(2, 20, (), (), "cpu")
    sequences.add(0, [5, 6], 9, 0)
    with torch.no_grad():
        decoder.prefill([[5, 6]], [0])
        before = [x.clone() for x in (*decoder.pools.layers[0].__dict__.values(), sequences.tokens, sequences.length)]
        slots = torch.tensor([-1, -1])
        step(decoder, chain(sequences, slots, tree=True), sequences)
    after = (*decoder.pools.layers[0].__dict__.values(), sequences.tokens, sequences.length)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
