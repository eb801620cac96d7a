"""Cases of the causal convolution for its kernels: a pool with strangers, padding, no-ops, a previous window to replay."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ssmspec_ref import conv, tree
from ssmspec_ref.conv import ConvParams
from ssmspec_ref.shapes import Ancestors, Array, Parents
from tests.kernels.tensors import blank, draw, integers, strided
from tests.trees import SHAPES, packed, parents_of

LOOSE = 3  # slots of the pool that no row names


@dataclass(frozen=True)
class Options:
    """One case: sizes, storage types, what is on. `replay` is None, "advanced" or "path"."""

    b: int = 4
    t: int = 5
    c: int = 11
    w: int = 4
    state: str = "fp32"
    io: str = "fp32"
    bias: bool = True
    activation: bool = True
    live: bool = False
    replay: str | None = None
    keep: str = "final"
    padding: bool = True
    whole: bool = False
    """Integers, no activation: every operation is exact."""
    index: torch.dtype = torch.int32
    seed: int = 0

    def __str__(self) -> str:
        on = [name for name in ("bias", "activation", "live", "padding") if getattr(self, name)]
        return f"b{self.b}-t{self.t}-c{self.c}-w{self.w}-{self.state}-{self.io}-{self.replay}-{self.keep}-{'-'.join(on)}"


@dataclass
class Case:
    """The tensors of one call, and what the oracle takes: row i of the oracle is row rows[i] of the batch."""

    options: Options
    M: Tensor
    u: Tensor
    weight: Tensor
    bias: Tensor | None
    slots: Tensor
    out: Tensor
    params: ConvParams
    M0: Array
    inputs: Array
    rows: Array
    live: Array
    extra: dict[str, Tensor] = field(default_factory=dict)
    taken: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def tensors(self) -> dict[str, Tensor]:
        named = {"M": self.M, "u": self.u, "weight": self.weight, "bias": self.bias, "slots": self.slots, "out": self.out}
        return {name: t for name, t in {**named, **self.extra}.items() if t is not None}

    @property
    def settings(self) -> dict[str, Any]:
        return {"bias": self.bias, "activation": self.params.activation, "slots": self.slots, "out": self.out, **self.extra}

    @property
    def named(self) -> Tensor:
        """The slots of the live rows."""
        return self.slots[torch.from_numpy(self.rows)].long()


def case(o: Options) -> Case:
    """A pool whose slot 0 is the last row's, row 1 padding, rows out of order, NaN wherever nothing may be read."""
    rng = np.random.default_rng(o.seed)
    forms = (o.state, o.io)
    values = integers if o.whole else (lambda rng, *shape: draw(rng, *shape, forms=forms))
    weight = values(rng, o.c, o.w)
    params = ConvParams(weight, values(rng, o.c) if o.bias else None, o.activation and not o.whole)
    pool, slots = values(rng, o.b + LOOSE, o.c, o.w), 1 + rng.permutation(o.b + LOOSE - 1)[: o.b]
    slots[-1] = 0
    rows = np.array([i for i in range(o.b) if not (o.padding and i == 1 and o.b > 2)])
    u = values(rng, o.b, o.t, o.c)
    live = np.ones((o.b, o.t), dtype=bool)
    if o.live:
        live = rng.random((o.b, o.t)) < 0.6
        live[0], live[-1] = False, np.arange(o.t) == o.t // 2
    made = Case(
        o,
        M=strided(np.full_like(pool, np.nan), o.state),
        u=strided(np.where(live[:, :, None], u, np.nan), o.io),
        weight=strided(weight, o.io, gap=2),
        bias=None if params.bias is None else torch.from_numpy(params.bias).to(torch.float32),
        slots=torch.from_numpy(np.where(np.isin(np.arange(o.b), rows), slots, -1)).to(o.index),
        out=blank(o.io, o.b, o.t, o.c),
        params=params,
        M0=pool[slots[rows]],
        inputs=u[rows],
        rows=rows,
        live=live[rows],
    )
    made.M[made.named] = torch.from_numpy(made.M0).to(made.M.dtype)
    made.u[[i for i in range(o.b) if i not in rows]] = float("nan")
    if o.live:
        made.extra["live"] = torch.from_numpy(live)
    if o.replay:
        _replay(made, values, rng)
    return made


def _replay(made: Case, values: Any, rng: np.random.Generator) -> None:
    """A previous window of which some inputs were accepted; M0 becomes the window after them."""
    o = made.options
    tokens = o.w + 3
    previous, taken = values(rng, o.b, tokens, o.c), rng.integers(0, tokens, o.b)
    taken[0], taken[-1] = tokens, 0
    path = np.full((o.b, tokens), -1)
    for i, count in enumerate(taken):
        path[i, :count] = np.sort(rng.choice(tokens, count, replace=False)) if o.replay == "path" else np.arange(count)
    seen = (path[:, :, None] == np.arange(tokens)).any(axis=1)
    made.extra["previous"] = strided(np.where(seen[:, :, None], previous, np.nan), o.io, gap=4)
    made.taken = taken[made.rows]
    made.M0 = conv.commit_path(made.M0, previous[made.rows], path[made.rows])
    if o.replay == "path":
        made.extra["path"] = torch.from_numpy(path).to(o.index)
    else:
        made.extra["advanced"] = torch.from_numpy(taken).to(o.index)


def forest(o: Any) -> Parents:
    """Another tree for each row: padding behind it, a forest in the last row."""
    rng = np.random.default_rng(o.seed)
    shapes = [SHAPES[(i + o.seed) % len(SHAPES)] for i in range(o.b)]
    sizes = [o.t if i == 0 else int(rng.integers(1, o.t + 1)) for i in range(o.b)]
    parents = packed([parents_of(s, size, o.seed + i) for i, (s, size) in enumerate(zip(shapes, sizes, strict=True))], o.t)
    if o.t > 4:
        parents[-1] = parents_of("random", o.t, o.seed)
        parents[-1, 3] = -1
    return parents


def tree_mask(parents: Parents) -> Ancestors:
    """The ancestors of each node, roots anywhere."""
    mask = np.zeros((*parents.shape, parents.shape[1]), dtype=bool)
    for b, row in enumerate(parents):
        for i, above in enumerate(row):
            if above != tree.PADDING:
                mask[b, i] = mask[b, above] if above >= 0 else False
                mask[b, i, i] = True
    return mask
