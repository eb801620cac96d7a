"""Other projects' layers of the gated delta rule and of KDA: what their sides share, and fla's KDA.

States are (slot, value head, v, k), windows three columns of a slot. A layer of one token is a convolution, a recurrence that
forms the gates and normalises q and k, and a gated norm in place. fla's `fused_recurrent_kda` has a pool and slots.
"""

from collections.abc import Callable

from torch import Tensor

from .delta import WIDTH, Layer, Pools
from .loading import fla
from .side import TRITON, Side, blank

OneToken = Callable[[Tensor, Tensor, Tensor, Tensor], object]
"""The recurrence: packed q | k | v (b, c), states, slots (b), outputs (b, 1, h, v)."""
Convolution = Callable[[Tensor, Tensor], Tensor]
"""Of one token: windows, slots (b); gives q | k | v (b, c)."""
Norm = Callable[[Tensor], object]
"""The gated norm, in place."""


def bare(token: Callable[[Layer], OneToken]) -> Callable[[Layer], Side]:
    """One token of the recurrence alone."""

    def made(d: Layer) -> Side:
        run = token(d)
        pools = Pools.drawn(d, 1, WIDTH - 1, False)
        index = pools.slots[..., 0]
        written, outs = blank(d.like(), len(index))
        return Side(
            lambda i: run(d.qkv[:, 0], pools.S, index[i], outs[i]), written, [pools.S],
            lambda: (d.held(pools.S, index[0], True),), lambda S: d.bare(S, TRITON, False), lambda: d.read(outs[0]),
            lambda: d.held(pools.S, index[0], True), TRITON,
        )  # fmt: skip

    return made


def bare_fla(d: Layer) -> Side:
    """KDA, from q, k and v that are dense."""
    run = fla().fused_recurrent_kda_fwd
    pools = Pools.drawn(d, 1, WIDTH, False, turned=False)
    index = pools.slots[..., 0]
    written, outs = blank(d.like(), len(index))
    given = dict(zip("qkv", (x.contiguous() for x in d.split(d.qkv)), strict=True))
    given |= {"g": d.a, "beta": d.b, "A_log": d.A_log, "dt_bias": d.bias.flatten()}
    how = dict.fromkeys(("use_qk_l2norm_in_kernel", "use_gate_in_kernel", "use_beta_sigmoid_in_kernel"), True)
    return Side(
        lambda i: run(**given, **how, initial_state=pools.S, ssm_state_indices=index[i], out=outs[i]), written, [pools.S],
        lambda: (d.held(pools.S, index[0]),), lambda S: d.bare(S, TRITON, False), lambda: d.read(outs[0]),
        lambda: d.held(pools.S, index[0]), TRITON,
    )  # fmt: skip


def layer(
    convolution: Callable[[Layer], Convolution],
    token: Callable[[Layer], OneToken],
    norm: Callable[[Layer], Norm],
    dense: bool = True,
) -> Callable[[Layer], Side]:
    """A layer of one token; `dense`: the channels of a window's column lie together."""

    def made(d: Layer) -> Side:
        conv, run, after = convolution(d), token(d), norm(d)
        pools = Pools.drawn(d, 1, WIDTH - 1, False, dense=dense)
        index = pools.slots[..., 0]
        written, outs = blank(d.like(), len(index))

        def launch(i: int) -> None:
            run(conv(pools.M, index[i]), pools.S, index[i], outs[i])
            after(outs[i])

        return Side(
            launch, written, [pools.S, pools.M], lambda: (d.held(pools.S, index[0], True), d.columns(pools.M, index[0])),
            lambda S, M: d.whole(S, M, TRITON, False, False), lambda: d.read(outs[0]),
            lambda: d.held(pools.S, index[0], True), TRITON, 3,
        )  # fmt: skip

    return made
