"""Faults whose cause the report's own words tell, whether or not a planted fault equals them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance.diagnose.equations.search import SECONDS as LINES
from conformance.diagnose.facts import causes, equation, tried
from conformance.diagnose.observe import observe
from conformance.judge.clock import Clock
from conformance.suite import of_operation
from ssmspec_ref import conv, delta, selective, ssd
from ssmspec_ref.contract import Capability, NumericContract
from ssmspec_ref.layers import mixer
from ssmspec_ref.records import along, masked
from ssmspec_ref.shapes import Array

from .invented import single


def dead_tokens_decay(S: Array, window: Any, params: Any, live: Array) -> tuple[Array, ...]:
    """A dead token's update is masked, and its decay is not; its g may be anything, so that the state may overflow."""
    held = masked(window, live)
    with np.errstate(over="ignore", invalid="ignore"):
        g = window.g.astype(np.float32)
        o = []
        for t in range(g.shape[1]):
            out, new = delta.step(S, held.token(t), params)
            decay = np.exp(g[:, t])
            kept = S * (decay[..., None] if decay.ndim == 3 else decay[..., None, None])
            S = np.where(live[:, t, None, None, None], new, np.nan_to_num(kept, posinf=1e38, neginf=-1e38))
            o.append(out)
        S = np.where(np.abs(S) > 1e37, np.inf, S)
    return single(np.stack(o, axis=1), S)


def eps_outside_the_root(S: Array, token: Any, params: Any) -> tuple[Array, ...]:
    """eps is added to the norm, and not to its square."""
    if not params.l2_norm:
        return single(*delta.step(S, token, params))
    q, k = (x / (np.sqrt((x**2).sum(axis=-1, keepdims=True)) + params.eps) for x in (token.q, token.k))
    return single(*delta.step(S, replace(token, q=q, k=k), replace(params, l2_norm=False)))


def scaled_again(S: Array, token: Any, params: Any) -> tuple[Array, ...]:
    """q is scaled before a call that scales it too, where it is normalised."""
    if not params.l2_norm:
        return single(*delta.step(S, token, params))
    o, S_next = delta.step(S, token, params)
    return single(o * (token.q.shape[-1] ** -0.5 if params.scale is None else params.scale), S_next)


def log_of_one_plus(S: Array, token: Any, params: Any) -> tuple[Array, ...]:
    """softplus is log(1 + e^x) in fp32, which is 0 far below 0."""
    if not params.dt_softplus:
        return single(*selective.step(S, token, params))
    x = token.dt if params.dt_bias is None else token.dt + params.dt_bias
    dt = np.log(np.float32(1) + np.exp(x.astype(np.float32))).astype(np.float64)
    return single(*selective.step(S, replace(token, dt=dt), replace(params, dt_softplus=False, dt_bias=None)))


def rootless(M: Array, u: Array, path: Array) -> Array:
    """Entries of the path that are 0 are taken for padding."""
    kept = np.full_like(path, -1)
    for b, row in enumerate(path):
        kept[b, : (row > 0).sum()] = row[row > 0]
    return single(conv.commit(M, along(u, kept), (kept > 0).sum(axis=1)))[0]


def mask_as_a_number(S: Array, window: Any, params: Any, live: Array) -> tuple[Array, ...]:
    """The mask is summed, and that many first tokens are taken for live."""
    with np.errstate(over="ignore", invalid="ignore"):
        return single(*delta.scan(S, window, params, np.arange(live.shape[1]) < live.sum(axis=1)[:, None]))


def root_always(M: Array, u: Array, advanced: Array) -> Array:
    """The root is taken for accepted where nothing is."""
    return single(conv.commit(M, u, np.maximum(advanced, 1)))[0]


def first_inputs(M: Array, u: Array, advanced: Array) -> Array:
    """Of more accepted inputs than the window has columns the first are kept."""
    return single(conv.commit(M, u, np.minimum(advanced, M.shape[2])))[0]


def late_heads_read_group_0(S: Array, window: Any, params: Any) -> tuple[Array, ...]:
    """Heads from the fourth on, a second tile of them, read B of group 0."""
    right = ssd.scan(S, window, params)
    wrong = ssd.scan(S, replace(window, B=np.broadcast_to(window.B[:, :, :1], window.B.shape).copy()), params)
    late = np.arange(S.shape[1]) >= 4
    return single(np.where(late[:, None], wrong[0], right[0]), np.where(late[:, None, None], wrong[1], right[1]))


class Commits:
    """A layer whose convolution takes every token of a window for accepted, or whose recurrence leaves out the last token of
    a window that is accepted whole."""

    def __init__(self, layer: Any, state: Any, all_of_M: bool) -> None:
        self.layer, self.held, self.all_of_M = layer, state, all_of_M

    def verify(self, inputs: Any, parents: Array | None = None) -> Array:
        self.inputs = inputs
        return single(mixer.scan(self.held, inputs, self.layer)[0])[0]

    def commit(self, advanced: Array, path: Array) -> None:
        t = path.shape[1]
        chain = np.broadcast_to(np.arange(t), path.shape)
        of_M = np.where((advanced > 0)[:, None], chain, -1) if self.all_of_M else path
        of_S = path if self.all_of_M else np.where(chain < np.where(advanced == t, t - 1, advanced)[:, None], chain, -1)
        M, S = (mixer.scan(self.held, along(self.inputs, p), self.layer, p >= 0)[1] for p in (of_M, of_S))
        self.held = replace(self.held, M=M.M, S=S.S)

    def state(self) -> tuple[Array, Array]:
        M, S = single(self.held.M, self.held.S)
        return M, S


def conv_takes_all(layer: Any, state: Any) -> Commits:
    return Commits(layer, state, all_of_M=True)


def whole_is_one_short(layer: Any, state: Any) -> Commits:
    return Commits(layer, state, all_of_M=False)


MISTAKES: dict[str, tuple[Callable[..., Any], str, str]] = {
    "decay": (dead_tokens_decay, "delta.scan_masked", "as if dead tokens decayed the state, and added nothing to it"),
    "eps": (eps_outside_the_root, "delta.step", "einsum('...k, ...k -> ...', x, x)) + eps)"),
    "scale": (scaled_again, "delta.step", "as if q were scaled twice"),
    "softplus": (log_of_one_plus, "selective.step", "it would hold under softplus=log"),
    "number": (mask_as_a_number, "delta.scan_masked", "as if the first tokens of a row were live, as many as live marks"),
    "rooted": (root_always, "conv.commit", "as if a row with advanced = 0 accepted its root"),
    "first": (first_inputs, "conv.commit", "as if the first w of the accepted tokens counted"),
    "heads": (late_heads_read_group_0, "ssd.scan", "as if every head read group 0, for B alone, only at heads from 4 on"),
    "root": (rootless, "conv.commit_path", "as if entries of the path that are 0, the root, were taken for padding"),
    "all": (
        conv_takes_all,
        "speculate.chain",
        "every token of a window were accepted, for the window of the convolution alone",
    ),
    "whole": (whole_is_one_short, "speculate.chain", "accepted whole counted one token fewer, for the recurrent state alone"),
}


CASES = 16
"""Cases of an operation to call: enough that each mistake shows in some."""


SLOW = {"all"}
"""Mistakes that another one resembles, and of which the search takes ten seconds."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly) if name in SLOW else name for name in MISTAKES]
)
def test_a_mistake_is_told_in_words_or_by_a_line_of_the_reference(name: str) -> None:
    run, operation, words = MISTAKES[name]
    capability = Capability(run, NumericContract())
    specification = of_operation(operation)[0]
    seen, passing = [], []
    for case in list(specification.cases("standard", capability.limits))[:CASES]:
        found = observe(specification, capability, case)
        if found is not None:
            (passing if found.passes else seen).append(case)
    observed = tried(specification, capability, min(seen, key=lambda case: case.size()), seen)
    said, _ = causes(specification, capability, observed)
    if not said:
        said = equation(specification, capability, observed, passing, Clock(LINES))
    assert words in "; ".join(said)
