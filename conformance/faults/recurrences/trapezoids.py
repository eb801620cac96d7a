"""Mamba-3 with another rotation, another trapezoid or another decay."""

from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref import mamba3
from ssmspec_ref.contract import FLOAT64, Limits
from ssmspec_ref.functions import sigmoid, softplus
from ssmspec_ref.mamba3 import Pieces, finish, normed, packed, per_head, pieces_of, skip, turn, values
from ssmspec_ref.shapes import Array, Mask

from ...mistakes.mistake import Mistake, before, instead
from ..fault import planted

Runs = tuple[Array, Array]
HALVES = Limits({"pairs": ("halves",)}, reason="pairs of halves")


class Rule:
    """Mamba-3, token by token; each fault replaces one of its parts."""

    def rate(self, token: Any, params: Any) -> Array:
        return np.maximum(softplus(token.A), params.A_floor)

    def share(self, token: Any) -> Array:
        return sigmoid(token.trap)

    def second(self, dt: Array, share: Array, decay: Array) -> Array:
        """The weight of the previous input."""
        weight: Array = decay * dt * (1 - share)
        return weight

    def angle(self, held: Array, token: Any, dt: Array) -> Array:
        angle: Array = np.mod(held + np.pi * dt[:, :, None] * np.tanh(token.angle)[:, None], mamba3.TURN)
        return angle

    def vectors(self, x: Array, weight: Array, bias: Array, params: Any) -> Array:
        return per_head(normed(x, weight, params.eps), params.heads) + bias

    def turned(self, x: Array, angle: Array, params: Any) -> Array:
        return turn(x, angle[:, :, None], params)

    query = turned

    def kept(self, turned: Array, straight: Array) -> Array:
        """The key that the next token reads."""
        return turned

    def ranks(self, v: Array, k: Array) -> Array:
        return np.einsum("bhrp, bhrn -> bhpn", v, k)

    def step(self, S: Array, token: Any, params: Any) -> Runs:
        held = pieces_of(S, token.x.shape[2], token.angle.shape[1], params)
        dt = softplus(token.dt + params.dt_bias)
        decay, share = np.exp(-dt * self.rate(token, params)), self.share(token)
        angle = self.angle(held.angle, token, dt)
        straight = self.vectors(token.B, params.B_norm, params.B_bias, params)
        k = self.turned(straight, angle, params)
        q = self.query(self.vectors(token.C, params.C_norm, params.C_bias, params), angle, params)
        v = values(token.x, params)
        before = self.second(dt, share, decay)[..., None, None] * self.ranks(values(held.value, params), held.key)
        H = decay[..., None, None] * held.S + before + (dt * share)[..., None, None] * self.ranks(v, k)
        o = np.einsum("bhpn, bhrn -> bhrp", H, q) + skip(v, params)
        return finish(o, token.z, params), packed(Pieces(H, angle, self.kept(k, straight), token.x))

    def __call__(self, S: Array, window: Any, params: Any) -> Runs:
        outputs = []
        for t in range(window.x.shape[1]):
            y, S = self.step(S, window.token(t), params)
            outputs.append(y)
        return np.stack(outputs, axis=1), S


def ruled(name: str, says: str, **parts: Any) -> Mistake:
    """Mamba-3 with one part of its rule replaced."""
    return instead(name, says, type(name, (Rule,), parts)())


def halves(self: Rule, x: Array, angle: Array, params: Any) -> Array:
    f, cos, sin = angle.shape[-1], np.cos(angle)[:, :, None], np.sin(angle)[:, :, None]
    one, two = x[..., :f], x[..., f : 2 * f]
    return np.concatenate([one * cos - two * sin, one * sin + two * cos, x[..., 2 * f :]], axis=-1)


def whole(self: Rule, x: Array, angle: Array, params: Any) -> Array:
    return turn(x, np.resize(angle, (*angle.shape[:2], x.shape[-1] // 2))[:, :, None], params)


def open_angle(self: Rule, held: Array, token: Any, dt: Array) -> Array:
    return np.mod(held + np.pi * dt[:, :, None] * token.angle[:, None], mamba3.TURN)


def late_floor(self: Rule, token: Any, params: Any) -> Array:
    dt = softplus(token.dt + params.dt_bias)
    return np.maximum(dt * softplus(token.A), params.A_floor) / dt


def biased(self: Rule, x: Array, weight: Array, bias: Array, params: Any) -> Array:
    return normed(per_head(x, params.heads) + bias, weight, params.eps)


class Behind(Rule):
    """B is rotated, then biased, and so is C."""

    __name__ = "bias_after_rotation"

    def vectors(self, x: Array, weight: Array, bias: Array, params: Any) -> Array:
        self.bias = bias
        return super().vectors(x, weight, np.zeros_like(bias), params)

    def turned(self, x: Array, angle: Array, params: Any) -> Array:
        return super().turned(x, angle, params) + self.bias

    query = turned


def padding_is_the_previous_input(S: Array, window: Any, params: Any, live: Mask) -> Runs:
    """A no-op leaves the state, but the next token finds 0 for its predecessor."""
    outputs = []
    for t in range(live.shape[1]):
        y, after = mamba3.step(S, window.token(t), params)
        held = pieces_of(S, window.x.shape[3], window.angle.shape[2], params)
        empty = packed(replace(held, key=np.zeros_like(held.key), value=np.zeros_like(held.value)))
        S = np.where(live[:, t, None, None], after, empty)
        outputs.append(np.where(live[:, t, None, None], y, 0.0))
    return np.stack(outputs, axis=1), S


FAULTS = planted(
    *(
        (run, "mamba3.scan", "RULE")
        for run in (
            before(
                "pairs_and_halves_exchanged",
                "Neighbours are rotated where halves are meant, and halves where neighbours are.",
                pairs=lambda pairs: {"neighbours": "halves", "halves": "neighbours"}[pairs],
            ),
            ruled(
                "query_not_turned",
                "B is rotated by the running angle, C is not.",
                query=lambda self, x, angle, params: x,
            ),
            ruled(
                "previous_key_not_turned",
                "The key that is kept for the next token is that before its rotation.",
                kept=lambda self, turned, straight: straight,
            ),
            ruled(
                "every_pair_turns",
                "The rope fraction is ignored: the angles are repeated until all pairs turn.",
                turned=whole,
                query=whole,
            ),
            ruled(
                "angle_of_one_token",
                "Each token is rotated by its own angle; the angles are not added up.",
                angle=lambda self, held, token, dt: Rule.angle(self, np.zeros_like(held), token, dt),
            ),
            ruled(
                "angle_without_steps",
                "The angle advances by pi tanh(a), the same in every head, without dt.",
                angle=lambda self, held, token, dt: Rule.angle(self, held, token, np.ones_like(dt)),
            ),
            ruled("angle_without_tanh", "The angle advances by pi dt a.", angle=open_angle),
            ruled(
                "no_trapezoid",
                "Lambda is missing: each token writes dt x k^T, and the previous one nothing.",
                share=lambda self, token: np.ones_like(token.trap),
            ),
            ruled(
                "lambda_without_sigmoid",
                "Lambda is taken as it was projected.",
                share=lambda self, token: np.asarray(token.trap),
            ),
            ruled(
                "second_half_not_decayed",
                "The previous input enters after the decay of the state.",
                second=lambda self, dt, share, decay: Rule.second(self, dt, share, np.ones_like(decay)),
            ),
            before("no_floor", "The decay rate has no floor.", A_floor=0.0),
            ruled("floor_of_the_log_decay", "The floor is that of dt A, not of A.", rate=late_floor),
            ruled("bias_before_norm", "B and C are biased, then normed.", vectors=biased),
            Behind(),
            ruled(
                "ranks_crossed",
                "Every value meets the sum of all keys, not the key of its rank.",
                ranks=lambda self, v, k: np.einsum("bhrp, bhsn -> bhpn", v, k),
            ),
        )
    ),
    (
        ruled(
            "halves_of_the_turned_part",
            "With half of the channels turned, channel i is paired with i + f as in attention, not with i + n / 2.",
            turned=halves,
            query=halves,
        ),
        "mamba3.scan",
        "VARIANT",
        FLOAT64,
        HALVES,
    ),
    (padding_is_the_previous_input, "mamba3.scan_masked", "PAD-LEAK"),
)
