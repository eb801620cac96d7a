"""Shared parts of the closed forms: chunks of a window, and decays along a path: exp of differences of running sums, or
products of decays."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import numpy as np

from ..contract import NumericContract
from ..shapes import Ancestors, Array
from .arithmetic import Approx, gamma, tiny, unit
from .functions import exp
from .inputs import appended
from .stored_state import stored_state

SMALLEST = 1e-300
"""Decays below it have no relative error in float64."""


def chunks(tokens: int, contract: NumericContract) -> Iterator[slice]:
    """The chunks of a window; a single chunk if outputs are read from a checkpoint."""
    size = tokens if contract.chunk is None or contract.order == "output_only" else contract.chunk
    return (slice(start, min(start + size, tokens)) for start in range(0, tokens, size))


def in_chunks(
    i: SimpleNamespace,
    names: tuple[str, ...],
    run: Callable[[SimpleNamespace, Ancestors], tuple[Approx, Approx]],
    axis: int = -1,
) -> tuple[Approx, Approx]:
    """Outputs and final state of a window chunk by chunk: `run` takes the inputs, with S the state before the chunk and those
    in `names` cut along the tokens, and a chain. The state is stored after every chunk if the contract says so, else once."""
    contract, S, outputs = i.S.contract, i.S, []
    for cut in chunks(getattr(i, names[0]).shape[1], contract):
        part = SimpleNamespace(**{**vars(i), **{name: getattr(i, name)[:, cut] for name in names}, "S": S})
        y, S = run(part, chain(*getattr(part, names[0]).shape[:2]))
        S = stored_state(S, axis) if contract.stored_every_token else S
        outputs.append(y)
    return appended(outputs), S if contract.stored_every_token else stored_state(S, axis)


def chain(rows: int, tokens: int) -> Ancestors:
    """The ancestors in a chain: every earlier token, and the token itself."""
    return np.broadcast_to(np.tri(tokens, dtype=bool), (rows, tokens, tokens))


def decays(z: Approx, ancestors: Ancestors) -> tuple[Approx, Approx]:
    """exp(cs_t), and exp(cs_t - cs_j) for j on the path of t (else 0), cs the sum of the log decays z along the path.

    cs_t = sum over the path of z                                    error gamma_K sum |z|, K additions          (1)
    cs_t - cs_j: the errors of z between j and t, both roundings (1), and one of the difference                  (2)
    if exp is 2^(x log2 e), the sums may be multiplied by log2 e before they are subtracted: u |cs| more for each   (3)

    Computed log decays are at most 0 whatever their error; so are their sums, and the differences up to (2).

    `z` is (b t ..) with any further axes; the results are (b t ..) and (b t j ..). Sums of the log decays between j and t,
    without running sums, are covered too: K roundings of at most the same terms. But a product of K factors exp(z) has an
    error of K r, which (1) does not cover: in the order `associative` the decays are those of `products`.
    """
    c = z.contract
    if c.order == "associative":
        return products(z, ancestors)
    path = ancestors.astype(float)
    rounding = gamma(np.maximum(ancestors.sum(axis=2) - 1, 0), c)
    rounding = _along(rounding, z) * np.einsum("btj, bj... -> bt...", path, z.size)
    value = np.einsum("btj, bj... -> bt...", path, z.value)
    cs = Approx(value, np.einsum("btj, bj... -> bt...", path, z.error) + rounding, c)  # (1)
    difference = _since(z.value, ancestors)
    if c.exp == "ex2":
        rounding = rounding + unit(c) * cs.size  # (3)
    carried, both = _since(z.error, ancestors), rounding[:, :, None] + rounding[:, None]
    carried = carried + both + unit(c) * (np.abs(difference) + carried + both)  # (2)
    seen = ancestors.reshape(ancestors.shape + (1,) * (z.value.ndim - 2))
    return exp(cs, 0.0), exp(Approx(difference, carried, c), both).where(seen)


def products(z: Approx, ancestors: Ancestors) -> tuple[Approx, Approx]:
    """As `decays`, each a product of the decays of its K tokens, multiplied in any order and association.

    a^_i = exp z_i (1 + d_i), |d_i| <= w_i          w_i from the error of z and that of exp                        (1)
    |prod a^ - prod a| <= prod a (prod (1 + w_i) (1 + u)^K - 1) + K tiny prod max(1, a_i (1 + w_i) (1 + u))        (2)

    A scan of pairs multiplies an update by some of the decays at a time; (2) has a rounding for each. Multiplying by a decay
    of exactly 1 is exact, so that no-ops add none.
    Source: Higham, lemma 3.1, with factors of their own errors.
    """
    c, a = z.contract, exp(z, 0.0)
    whole = a.value > SMALLEST
    wider = np.log1p(np.divide(a.error, a.value, out=np.zeros(a.shape), where=whole))
    wider = np.where(whole, wider, np.log(np.maximum(a.value + a.error, SMALLEST)) - z.value)  # log (1 + w)
    factors = (z.size > 0).astype(float)
    wider = wider + factors * np.log1p(unit(c))
    path, each = ancestors.astype(float), (z.value, wider, factors, np.maximum(z.value + wider, 0.0))
    log, wide, count, grown = (np.einsum("btj, bj... -> bt...", path, x) for x in each)
    lost = tiny(c) * np.exp(grown)
    log_since, wide_since, count_since = (_since(x, ancestors) for x in each[:3])
    between = _product(log_since, wide_since, count_since * lost[:, :, None], c)
    seen = ancestors.reshape(ancestors.shape + (1,) * (z.value.ndim - 2))
    return _product(log, wide, count * lost, c), between.where(seen)


def scalings(tokens: Approx) -> int:
    """How many decays may multiply a term of a window (b t ..) one by one, beyond the one that `decays` makes of them."""
    return tokens.shape[1] if tokens.contract.order == "associative" else 0


def _product(log: Array, wider: Array, lost: Array, c: NumericContract) -> Approx:
    """exp of a log, wrong by a factor of at most exp(wider) and by `lost` (2)."""
    value = np.exp(log)
    error = np.where(wider < 1, value * np.expm1(np.minimum(wider, 1)), np.exp(log + wider) - value)
    return Approx(value, error + lost, c)


def _since(z: Array, ancestors: Ancestors) -> Array:
    """The sum of z (b t ..) behind j, up to t, as (b t j ..), for j on the path of t, else 0: that of the parent of t, and
    z_t. The parent is the last ancestor before t. No sums are subtracted, so nothing cancels."""
    rows, tokens = z.shape[:2]
    found = np.zeros((rows, tokens, *z.shape[1:]))
    row = np.arange(rows)
    for t in range(1, tokens):
        before = ancestors[:, t, :t]
        parent = t - 1 - np.argmax(before[:, ::-1], axis=1)  # of a root t - 1, and nothing of it is taken
        taken = found[row, parent, :t] + z[:, t, None]
        found[:, t, :t] = np.where(before.reshape(before.shape + (1,) * (z.ndim - 2)), taken, 0.0)
    return found


def _along(per_token: Array, z: Approx) -> Array:
    return per_token.reshape(per_token.shape + (1,) * (z.value.ndim - 2))


class Carried:
    """The error of a state that the linear maps M_1, M_2 .. propagate, each adding an error of its step:

    e_t = sum_s |M_t .. M_s+1| eps_s + |M_t .. M_1| e_0

    Products are kept for `reach` maps; then the error so far becomes the new e_0, which is still a bound.
    """

    def __init__(self, start: Array, reach: int = 64) -> None:
        self.reach = reach
        self._restart(start)

    def _restart(self, error: Array) -> None:
        self.added = [error]
        self.maps = np.broadcast_to(np.eye(error.shape[-2]), (1, *error.shape[:-2], error.shape[-2], error.shape[-2]))

    def after(self, M: Array, added: Array) -> Array:
        """The error after one more map M, which adds `added`."""
        self.maps = np.concatenate([M @ self.maps, np.broadcast_to(np.eye(M.shape[-1]), (1, *M.shape))])
        self.added.append(added)
        error = np.einsum("s...ij, s...jv -> ...iv", np.abs(self.maps), np.stack(self.added), optimize=True)
        if len(self.added) > self.reach:
            self._restart(error)
        return error
