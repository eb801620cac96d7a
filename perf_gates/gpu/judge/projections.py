"""The layers between the recurrences, at the widths of models: projections of a few rows, and norms."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from ssmspec_ref import error_bounds as eb
from ssmspec_ref.layers.linear import Linear
from ssmspec_ref.layers.norm import GatedNorm

from .call import Call, Check, Plan, declared, launcher, within

PROJECTIONS = {"in_proj": (2560, 10576), "out_proj": (5120, 2560)}
MOST_ROWS = 128
"""Most rows of `linear_rows`; an engine with more rows uses a matrix product."""


def checks(plan: Plan) -> Iterator[Check]:
    for b in plan.batches:
        for model, (k, o) in ({"tiny": (70, 37)} if plan.tiny else PROJECTIONS).items():
            for m in sorted({m for m in (b, 6 * b) if m <= MOST_ROWS}):
                yield Check("linear_rows", model, f"{m} rows", b, partial(linear, m=m, k=k, o=o))
                if plan.rare:
                    name, alone = f"{m} rows without overlap", partial(linear, m=m, k=k, o=o, overlap=False)
                    yield Check("linear_rows", model, name, b, alone)
                yield Check("linear_added", model, f"{m} rows", b, partial(added, m=m, k=k, o=o))
        yield Check("norm", "mamba2-2.7b", "T=6", b, partial(norm, b=b, t=6, u=64 if plan.tiny else 2560))
        yield Check("gated_norm", "mamba2-2.7b", "T=6", b, partial(gated, b=b, shape=(6, 96 if plan.tiny else 5120)))
        yield Check(
            "gated_norm", "nemotron-3-nano-4b", "T=6", b, partial(gated, b=b, shape=(6, 96 if plan.tiny else 7680), groups=8)
        )
        yield Check(
            "gated_norm", "qwen3.5-4b", "T=6", b, partial(gated, b=b, shape=(6, 4 if plan.tiny else 32, 128), norm_first=True)
        )


def linear(call: Call, m: int, k: int, o: int, **how: Any) -> float:
    """All columns for a few rows."""
    x, W, out = call.normal(m, k), call.normal(o, k, scale=k**-0.5), call.blank(m, o, form="fp32")
    with call.keeping({"out": slice(0, m)}, x=x, W=W, out=out):
        launcher("linear_rows")(x, W, out=out, **how)
    rows, columns = call.sample(m, 3), call.sample(o, 400)
    picked = x.double().cpu().numpy()[rows], W.double().cpu().numpy()[columns]
    contract = declared(io="fp32")
    assert bool(out.isfinite().all()), "an output was not written"
    pair = eb.linear(eb.exact(picked[0], contract), Linear(picked[1]))
    return within("y", out.double().cpu().numpy()[rows][:, columns], pair)


def added(call: Call, m: int, k: int, o: int) -> float:
    """All columns for a few rows, with the residual's sum of all rows bit for bit; then the next layer."""
    x, W, weight = call.normal(m, k), call.normal(o, k, scale=k**-0.5), call.normal(o)
    residual, out, squares = call.normal(m, o, form="fp32"), call.blank(m, o), call.blank(m, -(-o // 16), form="fp32")
    before, y = residual.clone(), launcher("linear_rows")(x, W).float()
    with call.keeping(dict.fromkeys(("out", "residual", "squares"), slice(0, m)), x=x, W=W, residual=residual, out=out):
        launcher("linear_added")(x, W, residual=residual, weight=weight, out=out, sums=squares)
    assert torch.equal(residual, before + y), "the residual is not the sum with the rounded product"
    assert torch.equal(out, (weight.float() * residual).to(out.dtype)), "v is not the weighted residual"
    behind, made = call.normal(512, o, scale=o**-0.5), call.blank(m, 512, form="fp32")
    launcher("linear_rows")(out, behind, squares=squares, eps=1e-6, out=made)
    rows, contract = call.sample(m, 3), declared(io="fp32")
    r, v, W_ = (t.double().cpu().numpy() for t in (residual[rows], out[rows], behind))
    mean = eb.arithmetic.sum_of_products(("...i, ...i -> ...", *(eb.exact(r, contract),) * 2)) * (1 / o)
    pair = eb.linear(eb.exact(v, contract), Linear(W_)) * eb.rsqrt(mean + 1e-6)[..., None]
    return within("y", made.double().cpu().numpy()[rows], pair)


def norm(call: Call, b: int, t: int, u: int) -> float:
    """The residual's sum bit for bit, the norm within its bound, all rows."""
    x, weight, residual = call.normal(b, t, u), call.normal(u), call.normal(b, t, u, form="fp32")
    out, value = call.blank(b, t, u), x.float() + residual
    with call.keeping({"out": slice(None), "residual": slice(None)}, x=x, weight=weight, residual=residual, out=out):
        launcher("norm")(x, weight, residual=residual, out=out)
    assert torch.equal(residual, value), "the residual is not the sum"
    pair = eb.rms(eb.exact(value.double().cpu().numpy(), declared(io="fp32")), weight.double().cpu().numpy(), 1e-6)
    return within("y", out.double().cpu().numpy(), pair.store("bf16"))


def gated(call: Call, b: int, shape: tuple[int, ...], **how: Any) -> float:
    """All rows, within the bound."""
    (y, z), weight, out = call.beside(b, 1, shape, shape), call.normal(shape[-1]), call.blank(b, *shape)
    y, z, live = y[:, 0], z[:, 0], b - 1 if b > 1 else 1
    with call.keeping({"out": slice(None)}, y=y, weight=weight, out=out):
        launcher("gated_norm")(y, z, weight, out=out, **how)
    contract, norm_ = declared(io="fp32"), GatedNorm(weight.double().cpu().numpy(), **how)
    exact_y, exact_z = (eb.exact(x[:live].double().cpu().numpy(), contract) for x in (y, z))
    return within("y", out[:live].double().cpu().numpy(), eb.gated(exact_y, exact_z, norm_).store("bf16"))
