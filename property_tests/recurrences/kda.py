"""Layers of Kimi Delta Attention under fuzzing: the delta rule with a decay by key channel, with and without a bound."""

from ssmspec_ref.delta import DeltaParams
from ssmspec_ref.layers.layer import DeltaLayer
from ssmspec_ref.layers.linear import Linear
from ssmspec_ref.layers.mixer import DeltaMixer
from ssmspec_ref.layers.norm import GatedNorm
from ssmspec_ref.model import Layer

from ..drawing.maker import EPS, WIDTH, Maker


def layer(m: Maker) -> Layer:
    h, k, v = m.given("h", 2), m.given("n", 4), m.given("p", 3)
    mix = DeltaMixer(m.conv(h * (2 * k + v), False), DeltaParams(eps=1e-2), h, h, k, v)
    gated = GatedNorm(m.weight(v), EPS, norm_first=True, gate="sigmoid")
    maps = m.into(h * (2 * k + v)), projection(m, h * v), projection(m, h * k), m.into(h)
    rates = m.rate(h), m.normal(h, k, offset=-1.0)
    return DeltaLayer(mix, *maps, *rates, gated, m.out(h * v), lower_bound=m.given("bound", None))


def projection(m: Maker, outputs: int) -> Linear:
    """A projection from the residual stream, of one factor or of two."""
    if not (rank := m.given("rank", 0)):
        return m.into(outputs)
    return Linear(m.normal(outputs, rank, scale=rank**-0.5), None, m.normal(rank, WIDTH, scale=WIDTH**-0.5))
