"""SSD with the first half of the gated norm: v = w (y silu z), and the squares of y silu z tile by tile."""

from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from ssmspec_ref import error_bounds as eb
from ssmspec_ref.error_bounds.arithmetic import Approx, constant, sum_of_products

from .call import Call, declared, finite, launcher, masks, poisoned, pulled, within
from .ssd_layer import Layer


def gated(call: Call, sizes: Any, b: int) -> float:
    """A token with its gate and the norm's weight; the squares of the sampled heads, tile by tile."""
    layer, (h, p, _, _), parts = Layer(call, sizes, b), sizes, launcher("ssd_gated", "parts")
    z, weight, squares = call.normal(b, 1, h, p), call.normal(h, p), call.blank(b, 1, parts(h, p), form="fp32")
    tokens, out = layer.window(1), layer.blank(1)
    window, errors = layer.sampled(tokens)
    window = replace(window, z=pulled(z, layer.rows, layer.heads))
    g, S = eb.ssd.scan(layer.state(), window, layer.params, declared(io="fp32"), inexact=errors)
    owned = {"out": slice(0, layer.live), "squares": slice(0, layer.live), "S": layer.own}
    with call.keeping(owned, out=out, squares=squares, z=z, weight=weight, **layer.same(**tokens)):
        launcher("ssd_gated")(layer.S, **tokens, **layer.given, z=z, weight=weight, out=out, squares=squares)
    tiles = parts(h, p) // h
    size = 1 << (-(-p // tiles) - 1).bit_length()
    pieces = g.map(lambda a: np.pad(a, [(0, 0)] * 3 + [(0, tiles * size - p)]).reshape(*a.shape[:3], tiles, size))
    found = pulled(squares.view(b, 1, h, tiles), layer.rows, layer.heads)
    return max(weighted(layer, out, g, weight), within("squares", found, squared(pieces)), within("S", layer.state(), S))


def gated_window(call: Call, sizes: Any, b: int, t: int, branching: bool = False) -> float:
    """A window or tree with its gate and the norm's weight; the squares of the sampled heads, all tiles of one together."""
    layer, (h, p, _, _) = Layer(call, sizes, b), sizes
    z, weight, tokens, out = call.normal(b, t, h, p), call.normal(h, p), layer.window(t), layer.blank(t)
    mask = masks(call, b, t, branching)
    sees = poisoned(call, tokens | {"z": z}, mask)
    window, errors = layer.sampled(tokens)
    window = replace(window, z=np.nan_to_num(pulled(z, layer.rows, layer.heads)))
    contract = declared(io="fp32", order="output_only")
    g = eb.ssd.tree(layer.state(), window, mask[layer.rows], layer.params, contract, inexact=errors)
    more = {"ancestors": sees} if branching else {}
    with call.keeping({"out": slice(0, layer.live)}, out=out, z=z, weight=weight, **layer.same(**tokens)):
        _, squares = launcher("ssd_gated_window")(layer.S, **tokens, **layer.given, z=z, weight=weight, out=out, **more)
    found = pulled(squares.view(b, t, h, -1), layer.rows, layer.heads).sum(-1)
    return max(weighted(layer, out, g, weight), within("squares", found, squared(g)))


def weighted(layer: Layer, out: Tensor, g: Approx, weight: Tensor) -> float:
    """Compares v with the weighted y silu z of the sampled heads."""
    finite("v", out, layer.live)
    scale = constant(weight.double().cpu().numpy()[layer.heads], g.contract)
    return within("v", layer.outputs(out), (g * scale).store(layer.form))


def squared(g: Approx) -> Approx:
    """The sums of squares over the last axis."""
    return sum_of_products(("...i, ...i -> ...", g, g))
