"""Joint attainment and advancement: the lengths of its calls, its lag, and the three places where a no-op acts."""

from typing import Any

import numpy as np
import pytest
from numpy import einsum, exp

from ssmspec_ref import conv, delta, selective, ssd
from ssmspec_ref.backtrack import Accepted, Draft, joint
from ssmspec_ref.errors import LengthError, Unsupported
from ssmspec_ref.functions import silu
from ssmspec_ref.layers.mixer import scan
from ssmspec_ref.lengths import last
from ssmspec_ref.records import concat, each, masked, prefix
from ssmspec_ref.shapes import Array
from tests.families import Kind, Sizes, each_convolved, inputs, layer
from tests.speculation import Case, Excess, speculate, tokens_of, wrong

from .refusals import refused


@pytest.mark.parametrize("drafts", [0, 1, 2, 5])
def test_a_call_holds_c_plus_K_tokens_for_every_c_and_its_state_lags_by_the_accepted_drafts(drafts: int) -> None:
    mixer, plain, _ = layer("ssd", 2, Sizes(b=1))
    kept, excess, seen = joint.start(plain), Excess(), set()
    behind: list[Any] = []  # accepted tokens that the kept state lacks
    for w, accepted in enumerate([0, *range(drafts, -1, -1), drafts, 0]):
        window = inputs(mixer, w, 1, drafts + 1)
        brought = concat(behind[0], window) if behind else window
        c = int(joint.refeed(kept)[0]) + 1
        assert brought.pre.shape[1] == c + drafts
        seen.add(c + drafts)
        y, pending = joint.verify(kept, Draft(brought), mixer)
        kept = joint.commit(pending, Accepted(np.array([accepted + 1])), mixer)
        excess.compare(y[:, c - 1 :], scan(plain, window, mixer)[0])
        _, root = scan(plain, prefix(window, 1), mixer)
        excess.compare(kept.state.M, root.M)
        excess.compare(kept.state.S, root.S)
        _, plain = scan(plain, prefix(window, accepted + 1), mixer)
        behind = [tokens_of(window, 0, 1, accepted + 1)] if accepted else []
    assert seen == set(range(drafts + 1, 2 * drafts + 2))
    assert excess.holds(), excess


def test_the_first_window_brings_nothing_again() -> None:
    _, state, _ = layer("delta", 2, Sizes(b=3))
    assert joint.refeed(joint.start(state)).tolist() == [0, 0, 0]


def test_a_handed_over_state_is_the_lagged_state_advanced_by_what_it_lacks() -> None:
    mixer, state, window = layer("selective", 4, Sizes(b=2, t=5))
    _, pending = joint.verify(joint.start(state), Draft(window), mixer)
    kept = joint.commit(pending, Accepted(np.array([4, 4])), mixer)
    excess, lacking = Excess(), each(lambda a: a[:, 1:4], window)
    excess.compare(scan(joint.restore(kept, mixer), lacking, mixer)[1].S, scan(state, prefix(window, 4), mixer)[1].S)
    assert joint.refeed(kept).tolist() == [3, 3]
    assert excess.holds(), excess


def test_a_row_without_the_tokens_to_be_brought_again_is_refused() -> None:
    mixer, state, window = layer("ssd", 4, Sizes(b=2, t=4))
    _, pending = joint.verify(joint.start(state), Draft(window), mixer)
    kept = joint.commit(pending, Accepted(np.array([1, 4])), mixer)
    refused(
        LengthError,
        "row 1 holds 3 tokens, but its sequence lags by 3; feed these 3 again, then the root",
        joint.verify,
        kept,
        Draft(prefix(window, 3)),
        mixer,
    )
    refused(
        LengthError, "row 1 holds 1 tokens, but its sequence lags by 3", joint.verify, kept, Draft(prefix(window, 1)), mixer
    )
    joint.verify(kept, Draft(prefix(window, 4)), mixer)


def test_what_is_brought_again_cannot_be_accepted_again() -> None:
    mixer, state, window = layer("ssd", 4, Sizes(b=1, t=4))
    _, pending = joint.verify(joint.start(state), Draft(window), mixer)
    kept = joint.commit(pending, Accepted(np.array([3])), mixer)
    _, pending = joint.verify(kept, Draft(window), mixer)
    with pytest.raises(Exception, match="sequence 0 advanced by 3 tokens, but its window holds 2"):
        joint.commit(pending, Accepted(np.array([3])), mixer)


def test_a_tree_is_refused() -> None:
    mixer, state, window = layer("ssd", 4, Sizes(b=1, t=3))
    refused(
        Unsupported,
        "give each path of the tree as a row",
        joint.verify,
        joint.start(state),
        Draft(window, parents=np.array([[-1, 0, 0]])),
        mixer,
    )


# --------------------------------------------------------------------------------------------------------- planted faults


def acting_on(recurrence: Any, decay: bool, update: bool) -> Any:
    """The scan of a recurrence whose no-op acts on the decay, on the update, on both."""
    if recurrence is delta:
        return lambda S, window, params, live=None: _delta(S, window, params, live, decay, update)
    return lambda S, window, params, live=None: _additive(recurrence, S, window, params, live, decay, update)


def _additive(module: Any, S: Array, window: Any, params: Any, live: Any, decay: bool, update: bool) -> tuple[Array, Array]:
    dt = module.step_size(window.dt, params)
    dt_decay = masked(dt, live) if decay and live is not None else dt
    dt_update = masked(dt, live) if update and live is not None else dt
    outputs = []
    for t in range(dt.shape[1]):
        x, B, C = window.x[:, t], window.B[:, t], window.C[:, t]
        if module is ssd:
            B, C = ssd.per_head(B, x.shape[1]), ssd.per_head(C, x.shape[1])
            S = exp(dt_decay[:, t] * params.A)[..., None, None] * S
            S = S + einsum("bh, bhp, bhn -> bhpn", dt_update[:, t], x, B)
            y = einsum("bhpn, bhn -> bhp", S, C) + ssd.skip(x, params.D)
        else:
            S = exp(dt_decay[:, t, :, None] * params.A) * S + einsum("bd, bd, bn -> bdn", dt_update[:, t], x, B)
            y = einsum("bdn, bn -> bd", S, C) + params.D * x
        outputs.append(y * silu(window.z[:, t]))
    return np.stack(outputs, axis=1), S


def _delta(S: Array, window: Any, params: Any, live: Any, decay: bool, update: bool) -> tuple[Array, Array]:
    g = masked(window.g, live) if decay and live is not None else window.g
    beta = masked(window.beta, live) if update and live is not None else window.beta
    outputs = []
    for t in range(g.shape[1]):
        token = delta.DeltaToken(window.q[:, t], window.k[:, t], window.v[:, t], g[:, t], beta[:, t])
        o, S = delta.step(S, token, params)
        outputs.append(o)
    return np.stack(outputs, axis=1), S


def _conv(M: Array, u: Array, live: Array, params: Any) -> tuple[Array, Array]:
    """The window of the convolution passes over no-ops, but their outputs are what bias and SiLU make of them, not 0."""
    outputs = []
    for t in range(u.shape[1]):
        y, M_next = conv.step(M, u[:, t], params)
        M = np.where(live[:, t, None, None], M_next, M)
        outputs.append(y)
    return np.stack(outputs, axis=1), M


@each_convolved
@pytest.mark.parametrize("place", ["none", "conv", "decay", "update"])
def test_planted_a_no_op_that_misses_one_of_its_three_places_is_caught(
    kind: Kind, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recurrence = {"delta": delta, "delta_channel": delta, "selective": selective}.get(kind, ssd)
    monkeypatch.setattr(recurrence, "scan", acting_on(recurrence, place != "decay", place != "update"))
    monkeypatch.setattr(conv, "scan_masked", _conv if place != "conv" else lambda M, u, live, params: conv.scan(M, u, params))
    excess = speculate(joint, Case(kind, 5, Sizes(b=2), windows=4))
    assert excess.holds() == (place == "none"), excess


def test_planted_rows_padded_on_the_right_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backtracking row is short: padded behind, its no-ops are harmless, but the rows must be read where they end."""
    monkeypatch.setattr(joint, "end_together", lambda window, lengths: window)
    assert not speculate(joint, Case("ssd", 5, windows=4)).holds()


@pytest.mark.parametrize("off", [-1, 1])
def test_planted_a_backtracking_row_one_token_off_is_caught(off: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real = joint.backtracking

    def shifted(*args: Any) -> Any:
        c, source = real(*args)
        return np.where(c > 0, c + off, 0), source

    monkeypatch.setattr(joint, "backtracking", shifted)
    assert not speculate(joint, Case("ssd", 5, windows=4)).holds()


def test_planted_the_backtracking_row_of_another_sequence_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = joint.backtracking
    monkeypatch.setattr(joint, "backtracking", lambda *args: (real(*args)[0], real(*args)[1][::-1]))
    assert not speculate(joint, Case("ssd", 5, Sizes(b=3), windows=4)).holds()


def test_planted_a_rest_that_keeps_the_lag_but_not_the_state_is_caught() -> None:
    def commit(pending: Any, accepted: Accepted, mixer: Any) -> joint.Kept:
        return joint.Kept(pending.attained, joint.commit(pending, accepted, mixer).lag)

    assert not speculate(wrong(joint, commit=commit), Case("ssd", 5)).holds()


def test_rows_that_end_together_are_their_own_tokens_behind_no_ops() -> None:
    _, _, window = layer("ssd", 1, Sizes(b=3, t=5))
    lengths = np.array([5, 2, 0])
    ended = joint.end_together(window, lengths)
    assert np.array_equal(ended.pre[1, 3:], window.pre[1, :2])
    assert np.array_equal(ended.pre[0], window.pre[0])
    assert last(lengths, 5).sum(axis=1).tolist() == lengths.tolist()
    assert np.array_equal(joint.begin_together(ended.pre, lengths)[1, :2], window.pre[1, :2])
