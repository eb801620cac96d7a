"""Mamba-3 with another rotation, another trapezoid or another decay."""

from dataclasses import replace
from typing import Any

import numpy as np

from ssmspec_ref import mamba3
from ssmspec_ref.contract import FLOAT64, Adapter, Limits
from ssmspec_ref.functions import sigmoid, softplus
from ssmspec_ref.mamba3 import Pieces, finish, normed, packed, per_head, pieces_of, skip, turn, values
from ssmspec_ref.shapes import Array, Mask

from ..single import Wrong, adapter_of

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


def pairs_and_halves_exchanged(S: Array, window: Any, params: Any) -> Runs:
    """Neighbours are rotated where halves are meant, and halves where neighbours are."""
    other = {"neighbours": "halves", "halves": "neighbours"}[params.pairs]
    return mamba3.scan(S, window, replace(params, pairs=other))


def halves_of_the_turned_part(S: Array, window: Any, params: Any) -> Runs:
    """With half of the channels turned, channel i is paired with i + f as in attention, not with i + n / 2."""

    class Partial(Rule):
        def turned(self, x: Array, angle: Array, params: Any) -> Array:
            f, cos, sin = angle.shape[-1], np.cos(angle)[:, :, None], np.sin(angle)[:, :, None]
            one, two = x[..., :f], x[..., f : 2 * f]
            return np.concatenate([one * cos - two * sin, one * sin + two * cos, x[..., 2 * f :]], axis=-1)

        query = turned

    return Partial()(S, window, params)


def query_not_turned(S: Array, window: Any, params: Any) -> Runs:
    """B is rotated by the running angle, C is not."""

    class Straight(Rule):
        def query(self, x: Array, angle: Array, params: Any) -> Array:
            return x

    return Straight()(S, window, params)


def previous_key_not_turned(S: Array, window: Any, params: Any) -> Runs:
    """The key that is kept for the next token is that before its rotation."""

    class Unturned(Rule):
        def kept(self, turned: Array, straight: Array) -> Array:
            return straight

    return Unturned()(S, window, params)


def every_pair_turns(S: Array, window: Any, params: Any) -> Runs:
    """The rope fraction is ignored: the angles are repeated until all pairs turn."""

    class Whole(Rule):
        def turned(self, x: Array, angle: Array, params: Any) -> Array:
            return turn(x, np.resize(angle, (*angle.shape[:2], x.shape[-1] // 2))[:, :, None], params)

        query = turned

    return Whole()(S, window, params)


def angle_of_one_token(S: Array, window: Any, params: Any) -> Runs:
    """Each token is rotated by its own angle; the angles are not added up."""

    class Own(Rule):
        def angle(self, held: Array, token: Any, dt: Array) -> Array:
            return super().angle(np.zeros_like(held), token, dt)

    return Own()(S, window, params)


def angle_without_steps(S: Array, window: Any, params: Any) -> Runs:
    """The angle advances by pi tanh(a), the same in every head, without dt."""

    class Even(Rule):
        def angle(self, held: Array, token: Any, dt: Array) -> Array:
            return super().angle(held, token, np.ones_like(dt))

    return Even()(S, window, params)


def angle_without_tanh(S: Array, window: Any, params: Any) -> Runs:
    """The angle advances by pi dt a."""

    class Open(Rule):
        def angle(self, held: Array, token: Any, dt: Array) -> Array:
            return np.mod(held + np.pi * dt[:, :, None] * token.angle[:, None], mamba3.TURN)

    return Open()(S, window, params)


def no_trapezoid(S: Array, window: Any, params: Any) -> Runs:
    """Lambda is missing: each token writes dt x k^T, and the previous one nothing."""

    class Euler(Rule):
        def share(self, token: Any) -> Array:
            return np.ones_like(token.trap)

    return Euler()(S, window, params)


def lambda_without_sigmoid(S: Array, window: Any, params: Any) -> Runs:
    """Lambda is taken as it was projected."""

    class Raw(Rule):
        def share(self, token: Any) -> Array:
            return np.asarray(token.trap)

    return Raw()(S, window, params)


def second_half_not_decayed(S: Array, window: Any, params: Any) -> Runs:
    """The previous input enters after the decay of the state."""

    class Late(Rule):
        def second(self, dt: Array, share: Array, decay: Array) -> Array:
            return super().second(dt, share, np.ones_like(decay))

    return Late()(S, window, params)


def no_floor(S: Array, window: Any, params: Any) -> Runs:
    """The decay rate has no floor."""
    return mamba3.scan(S, window, replace(params, A_floor=0.0))


def floor_of_the_log_decay(S: Array, window: Any, params: Any) -> Runs:
    """The floor is that of dt A, not of A."""

    class Late(Rule):
        def rate(self, token: Any, params: Any) -> Array:
            dt = softplus(token.dt + params.dt_bias)
            return np.maximum(dt * softplus(token.A), params.A_floor) / dt

    return Late()(S, window, params)


def bias_before_norm(S: Array, window: Any, params: Any) -> Runs:
    """B and C are biased, then normed."""

    class Biased(Rule):
        def vectors(self, x: Array, weight: Array, bias: Array, params: Any) -> Array:
            return normed(per_head(x, params.heads) + bias, weight, params.eps)

    return Biased()(S, window, params)


def bias_after_rotation(S: Array, window: Any, params: Any) -> Runs:
    """B is rotated, then biased, and so is C."""

    class Behind(Rule):
        def vectors(self, x: Array, weight: Array, bias: Array, params: Any) -> Array:
            self.bias = bias
            return super().vectors(x, weight, np.zeros_like(bias), params)

        def turned(self, x: Array, angle: Array, params: Any) -> Array:
            return super().turned(x, angle, params) + self.bias

        query = turned

    return Behind()(S, window, params)


def ranks_crossed(S: Array, window: Any, params: Any) -> Runs:
    """Every value meets the sum of all keys, not the key of its rank."""

    class Crossed(Rule):
        def ranks(self, v: Array, k: Array) -> Array:
            return np.einsum("bhrp, bhsn -> bhpn", v, k)

    return Crossed()(S, window, params)


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


def _scans(*runs: Any) -> tuple[Wrong, ...]:
    return tuple((run, "mamba3.scan", "RULE") for run in runs)


FAULTS: tuple[Wrong, ...] = (
    *_scans(
        pairs_and_halves_exchanged,
        query_not_turned,
        previous_key_not_turned,
        every_pair_turns,
        angle_of_one_token,
        angle_without_steps,
        angle_without_tanh,
        no_trapezoid,
        lambda_without_sigmoid,
        second_half_not_decayed,
        no_floor,
        floor_of_the_log_decay,
        bias_before_norm,
        bias_after_rotation,
        ranks_crossed,
    ),
    (halves_of_the_turned_part, "mamba3.scan", "VARIANT", FLOAT64, HALVES),
    (padding_is_the_previous_input, "mamba3.scan_masked", "PAD-LEAK"),
)


def adapter() -> Adapter:
    return adapter_of("trapezoids", FAULTS)
