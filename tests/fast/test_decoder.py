"""Windows at the end of a cache: what fits is verified and committed, what does not is refused before anything is written."""

import copy

import pytest
import torch

from ssmspec_fast.engine.decoder import Decoder
from ssmspec_fast.engine.sequences import Sequences
from ssmspec_fast.engine.state import tensors
from ssmspec_fast.engine.window import Verdict, Window
from ssmspec_fast.methods import Method
from ssmspec_fast.methods.activation_replay import ActivationReplay
from ssmspec_fast.methods.joint import Joint, JointByLag
from ssmspec_fast.methods.plain import Plain
from ssmspec_fast.methods.replay_buffer import ReplayBuffer
from ssmspec_fast.methods.snapshots import Snapshots
from ssmspec_fast.methods.tree import Tree
from ssmspec_fast.operations import Emitted, torch_attention
from ssmspec_ref.errors import LengthError

from .models import drawn, prompts
from .runs import BITWISE, begun

CACHE, NODES = 8, 4
SAID = "a window of 4 tokens does not fit slot 1, which holds 8 and has 11 places; build the decoder with cache=9"
METHODS = {"snapshots": Snapshots, "joint": Joint, "replay": ActivationReplay, "buffer": ReplayBuffer, "tree": Tree}


def filled(method: Method, window: int, tokens: int) -> tuple[Decoder, Sequences]:
    """Slot 1 holds a prompt of so many tokens, its root included; slot 0 one of two."""
    return begun(drawn("bamba"), method, [[1, 2], [3] * tokens], [0, 1], slots=2, cache=CACHE, window=window)


def window(nodes: int, tree: bool, *slots: int, lengths: torch.Tensor | None = None) -> Window:
    tokens = torch.full((len(slots), nodes), 5)
    parents = torch.arange(-1, nodes - 1).expand_as(tokens) if tree else None
    return Window(tokens, torch.tensor(slots), lengths, parents)


@pytest.mark.parametrize("name", METHODS)
def test_a_window_beyond_the_cache_is_refused_before_anything_is_written(name: str) -> None:
    """The places are the cache and the drafts of one window behind its last token."""
    tree = name == "tree"
    decoder, sequences = filled(METHODS[name](), NODES, CACHE)
    feed = decoder.feed(window(NODES, tree, 0, 1), sequences)  # the last token of the cache is the root
    assert decoder.verify(feed).isfinite().all()
    decoder, sequences = filled(METHODS[name](), NODES, CACHE)
    decoder.pools.length[1] += 1  # as after one more token
    held = copy.deepcopy([decoder.pools.layers, decoder.pools.kept, decoder.pools.length])
    with pytest.raises(LengthError, match=SAID):
        decoder.feed(window(NODES, tree, 0, -1, 1), sequences)
    now = tensors([decoder.pools.layers, decoder.pools.kept, decoder.pools.length])
    assert all(torch.equal(a, b) for a, b in zip(tensors(held), now, strict=True))
    decoder.feed(window(NODES, tree, 0, -1), sequences)  # padding and the others do not mind


@pytest.mark.parametrize("name", [*METHODS, "joint by lag"])
def test_a_sequence_outgrows_its_places_with_one_error_under_every_method(name: str) -> None:
    """Windows that are accepted whole, until one does not fit; joint attainment enters accepted drafts a window later."""
    tree, method = name == "tree", {**METHODS, "joint by lag": JointByLag}[name]()
    decoder, sequences = filled(method, NODES, 1)
    for _ in range(2):
        feed = decoder.feed(window(NODES, tree, 1), sequences)
        decoder.verify(feed)
        path = torch.arange(NODES)[None]
        run = Emitted(torch.full((1, NODES), 5), path, torch.tensor([NODES]), torch.tensor([False]))
        verdict = Verdict(run, torch.tensor([0]), torch.tensor([1]))
        decoder.commit(feed, verdict)
        sequences.commit(verdict)
    with pytest.raises(LengthError, match=SAID):
        decoder.feed(window(NODES, tree, 1), sequences)


def test_plain_decoding_ends_with_the_cache() -> None:
    decoder, sequences = filled(Plain(), 1, CACHE)
    assert decoder.verify(decoder.feed(window(1, False, 1), sequences)).isfinite().all()
    decoder.pools.length[1] += 1
    with pytest.raises(LengthError, match="slot 1, which holds 8 and has 8 places; build the decoder with cache=9"):
        decoder.feed(window(1, False, 1), sequences)


def test_tokens_that_are_none_need_no_place() -> None:
    decoder, sequences = filled(Snapshots(), NODES, CACHE)
    decoder.pools.length[1] += 2
    decoder.feed(window(NODES, False, 0, 1, lengths=torch.tensor([4, 2])), sequences)
    with pytest.raises(LengthError, match="a window of 3 tokens"):
        decoder.feed(window(NODES, False, 0, 1, lengths=torch.tensor([4, 3])), sequences)


@pytest.mark.parametrize("name", ["bamba", "llama"])
def test_prompts_attended_together_leave_the_states_of_each_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, in runs that cut prompts in pieces; bit for bit."""
    found = []
    for together in (1, 3):
        monkeypatch.setattr(torch_attention, "at_once", lambda q, places, n=together: n)
        decoder = Decoder(drawn(name), Plain(), BITWISE, slots=6, cache=24, chunk=10)
        decoder.prefill(prompts(4, (9, 1, 17, 4, 2)), [4, 1, 0, 5, 2])
        found.append(tensors([decoder.pools.layers, decoder.pools.length]))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
