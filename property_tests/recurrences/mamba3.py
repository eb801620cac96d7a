"""Mamba-3 under fuzzing."""

import numpy as np

from ssmspec_ref.layers.mamba3 import Mamba3Layer, mixer_of
from ssmspec_ref.layers.norm import GatedNorm
from ssmspec_ref.mamba3 import Mamba3Params
from ssmspec_ref.model import Layer

from ..drawing.maker import EPS, RATE, Maker
from .kind import Kind


def layer(m: Maker) -> Layer:
    """Rank 1 with pairs of neighbours, or rank 2 with halves if x and B are `widened`."""
    rank = 2 if m.given("widened", False) else 1
    g, p, n = m.given("g", 1), m.given("p", 3), 2 * m.given("n", 5)
    h, f = g * m.given("h", 2), max(1, n // 4) if rank == 1 else n // 2
    up, gate, down = (m.normal(h, rank, p, scale=0.3, offset=0.75) if rank > 1 else None for _ in range(3))
    params = Mamba3Params(
        m.weight(n),
        m.weight(n),
        m.normal(h, rank, n, scale=0.3, offset=1.0),
        m.normal(h, rank, n, scale=0.3, offset=1.0),
        m.normal(h, offset=-1.0),
        m.normal(h),
        up,
        gate,
        down,
        A_floor=2.0 ** round(float(np.mean(RATE[m.given("decay", "gentle")]) / np.log(2.0))),
        eps=EPS,
        pairs="neighbours" if rank == 1 else "halves",
    )
    norm = GatedNorm(m.weight(h * p), EPS, groups=h, norm_first=True) if rank == 1 and m.given("norm", "") else None
    total = 2 * h * p + 2 * rank * g * n + 3 * h + f
    return Mamba3Layer(mixer_of(params, p, g, f), m.into(total), m.out(h * p), norm)


KIND = Kind("mamba3", {"mamba3": layer}, None, affine=False)
"""Its angle never fades, and the previous key and value enter as a product."""
