"""Heads on the target: their drafts are a function of the row's own tokens, and the output is plain decoding's."""

from typing import Any

import pytest
import torch

from ssmspec_fast.accept.multi_step import MultiStep
from ssmspec_fast.accept.naive import Naive
from ssmspec_fast.accept.rejection import Rejection
from ssmspec_fast.draft.heads import HeadDrafter
from ssmspec_fast.draft.nothing import Nothing
from ssmspec_fast.engine.loop import Engine
from ssmspec_fast.engine.sampling import Sampling
from ssmspec_fast.methods import Method
from ssmspec_fast.methods.activation_replay import ActivationReplay
from ssmspec_fast.methods.joint import Joint
from ssmspec_fast.methods.plain import Plain
from ssmspec_fast.methods.replay_buffer import ReplayBuffer
from ssmspec_fast.methods.snapshots import Snapshots
from ssmspec_fast.models.model import Model, head
from ssmspec_ref.errors import ParameterError, ShapeMismatch

from .models import drawn, prompts
from .runs import BITWISE, begun, emitted, engine
from .test_draft_model import Recorded

LENGTHS, HEADS = (1, 5, 3), 3


def weights(model: Model) -> torch.Tensor:
    width = model.embedding.shape[1]
    generator = torch.Generator().manual_seed(4)
    return torch.randn((HEADS, width, 2 * width), generator=generator) * width**-0.5


def recorded(name: str, method: Method, rule: Any = None, **options: Any) -> Recorded:
    """What was proposed; the output is plain decoding's."""
    model = drawn(name)
    watched = Recorded(HeadDrafter(model, weights(model), slots=2, **options))
    tokens = emitted(engine(model, watched, method, rule, slots=2), prompts(1, LENGTHS), 10)
    assert tokens == emitted(engine(model), prompts(1, LENGTHS), 10)
    return watched


def expected(model: Model, history: list[int]) -> torch.Tensor:
    """The heads' logits, from a plain decoder that reads the history."""
    decoder, sequences = begun(model, Plain(), [history[:-1]], [0])
    feed = decoder.feed(Nothing().propose(sequences, torch.tensor([0])).window, sequences)
    x, e = decoder.hidden(feed)[0, 0], model.embedding[history[-1]]
    h = [x + torch.nn.functional.silu(W @ torch.cat([x, e])) for W in weights(model)]
    return head(model, torch.stack(h)[None], BITWISE)[0]


@pytest.mark.parametrize("method", [Snapshots, Joint, ActivationReplay, ReplayBuffer])
def test_drafts_follow_the_accepted_path_under_every_method(method: type[Any]) -> None:
    watched, model, drafted = recorded("bamba", method()), drawn("bamba"), 0
    for history, request, proposal, row in watched.windows:
        window = proposal.window
        assert window.lengths is not None
        first = len(history) == LENGTHS[request]
        assert int(window.lengths[row]) == (1 if first else 1 + HEADS)
        if not first:
            with torch.no_grad():
                assert window.tokens[row, 1:].tolist() == expected(model, history).argmax(-1).tolist()
            drafted += 1
    assert drafted > 10


def test_drawn_drafts_come_with_their_law_and_are_judged_by_it() -> None:
    """At temperature 0 any law leaves greedy output as it is."""
    cold = Sampling(0.0)
    for rule in (Rejection(cold), MultiStep(cold), Naive(cold)):
        watched = recorded("mamba2", ActivationReplay(), rule, choose="iid", sampling=Sampling(0.5))
    model = drawn("mamba2")
    for history, request, proposal, row in watched.windows:
        if len(history) > LENGTHS[request]:
            assert proposal.q is not None
            with torch.no_grad():
                law = torch.softmax(expected(model, history).double() / 0.5, -1)
            assert float((proposal.q[row, :-1] - law).abs().max()) <= 1e-5  # fp32 logits of the same sums
            assert bool((proposal.q[row, :-1].gather(1, proposal.window.tokens[row, 1:, None]) > 0).all())


def test_a_planted_head_that_reads_the_end_of_the_window_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    observe = HeadDrafter.observe

    def late(self: HeadDrafter, sequences: Any, proposal: Any, verdict: Any) -> None:
        path = torch.full_like(verdict.run.path, proposal.window.tokens.shape[1] - 1)
        observe(self, sequences, proposal, verdict._replace(run=verdict.run._replace(path=path)))

    monkeypatch.setattr(HeadDrafter, "observe", late)
    watched = recorded("bamba", ActivationReplay())
    later = [(h, p.window.tokens[row, 1:]) for h, r, p, row in watched.windows if len(h) > LENGTHS[r] + 1]
    with torch.no_grad():
        assert any(came.tolist() != expected(drawn("bamba"), h).argmax(-1).tolist() for h, came in later)


def test_wrong_heads_are_refused_by_name() -> None:
    model = drawn("mamba2")
    for make, error in (
        (lambda: HeadDrafter(model, weights(model)[:, :, 1:]), ShapeMismatch),
        (lambda: HeadDrafter(model, weights(model)[:0]), ShapeMismatch),
        (lambda: HeadDrafter(model, weights(model), choose="without_replacement"), ParameterError),
        (lambda: HeadDrafter(model, weights(model), sampling=Sampling(repetition=1.1)), ParameterError),
        (lambda: Engine(model, HeadDrafter(model, weights(model), slots=1), ActivationReplay(), slots=2), ParameterError),
    ):
        with pytest.raises(error):
            make()
