"""SSD with the first half of the gated norm: v = w (y silu z), and the squares of y silu z tile by tile."""

from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from ssmspec_ref.error_bounds.arithmetic import Approx, constant, sum_of_products

from .call import Call, launcher, masks, poisoned, pulled, within
from .layer import Family, Layer, Tokens


def gated(call: Call, of: Family, sizes: Any, b: int, by: str) -> float:
    """A token with its gate and the norm's weight; the squares of the sampled heads, tile by tile."""
    layer, (h, p, _, _), parts = Layer(call, of, sizes, b), sizes, launcher(by, "parts")
    z, weight, squares = call.normal(b, 1, h, p), call.normal(h, p), call.blank(b, 1, parts(h, p), form="fp32")
    tokens = layer.tokens(1)
    g, S = layer.bound(by, layer.state(), with_gate(layer, tokens, z), io="fp32")
    given: dict[str, Any] = {"z": z, "weight": weight, "squares": squares}
    owned = {"squares": slice(0, layer.live), "S": layer.own}
    out = layer.run(by, tokens, owned, **given)["out"]
    tiles = parts(h, p) // h
    size = 1 << (-(-p // tiles) - 1).bit_length()
    pieces = g.map(lambda a: np.pad(a, [(0, 0)] * 3 + [(0, tiles * size - p)]).reshape(*a.shape[:3], tiles, size))
    found = pulled(squares.view(b, 1, h, tiles), layer.rows, layer.heads)
    return max(weighted(layer, out, g, weight), within("squares", found, squared(pieces)), within("S", layer.state(), S))


def gated_window(call: Call, of: Family, sizes: Any, b: int, by: str, t: int, branching: bool = False) -> float:
    """A window or tree with its gate and the norm's weight; the squares of the sampled heads, all tiles of one together."""
    layer, (h, p, _, _) = Layer(call, of, sizes, b), sizes
    z, weight, tokens = call.normal(b, t, h, p), call.normal(h, p), layer.tokens(t)
    mask = masks(call, b, t, branching)
    sees = poisoned(call, tokens | {"z": z}, mask)
    window = with_gate(layer, tokens, z)
    g = layer.bound(by, layer.state(), window, mask[layer.rows], io="fp32", order="output_only")
    shape: dict[str, Any] = {"ancestors": sees} if branching else {}
    found = layer.run(by, tokens, {}, z=z, weight=weight, **shape)
    squares = pulled(found["returned"][1].view(b, t, h, -1), layer.rows, layer.heads).sum(-1)
    return max(weighted(layer, found["out"], g, weight), within("squares", squares, squared(g)))


def with_gate(layer: Layer, tokens: dict[str, Tensor], z: Tensor) -> Tokens:
    window, errors = layer.window(tokens)
    return Tokens(replace(window, z=np.nan_to_num(pulled(z, layer.rows, layer.heads))), errors)


def weighted(layer: Layer, out: Tensor, g: Approx, weight: Tensor) -> float:
    """Compares v with the weighted y silu z of the sampled heads."""
    scale = constant(weight.double().cpu().numpy()[layer.heads], g.contract)
    return within("v", layer.outputs(out), (g * scale).store(layer.form))


def squared(g: Approx) -> Approx:
    """The sums of squares over the last axis."""
    return sum_of_products(("...i, ...i -> ...", g, g))
