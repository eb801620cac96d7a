"""What every kernel of the delta rule that advances a state is held to."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import signature
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from conformance.interpreter.memory import Memory, watch
from tests.kernels import delta_cases as cases
from tests.kernels.delta_cases import Case, Options
from tests.kernels.tensors import far


def assert_bound(case: Case, bounds: Any) -> None:
    """Outputs and states lie within the bounds that `Case.bound` gave."""
    cases.assert_within("o", case.out, bounds[0], case.rows)
    cases.assert_within("S", case.S, bounds[1], case.named)


def check_bound(kernel: Any, o: Options, **contract: Any) -> None:
    """Output and state within the bound; nothing else of the pool, of the output, or of any input has changed."""
    case, fresh = cases.draw(o), cases.draw(o)
    bounds, before = case.bound(**contract), case.whole()
    assert case.call(kernel) is case.out
    assert_bound(case, bounds)
    for x in (case.S[case.named], case.out[case.rows]):
        assert torch.isfinite(x).all()
    case.S[case.named], case.out[case.rows] = fresh.S[case.named], fresh.out[case.rows]
    case.check_untouched(before)


def check_exact(kernel: Any, o: Options, **contract: Any) -> None:
    case = cases.ints(o)
    y, S = case.bound(**contract)
    case.call(kernel)
    assert np.array_equal(cases.doubles(case.out), y.value)
    assert np.array_equal(cases.doubles(case.S)[case.slots.numpy()], S.value)


def check_steep(kernel: Any, o: Options, **contract: Any) -> None:
    """What a token that is not there would decay by, had it a gate, is neither in the output nor in the state."""
    case = cases.draw(replace(o, raw=True, bias=True))
    cases.steepen(case, 8.0)
    bounds = case.bound(**contract)
    case.call(kernel)
    assert_bound(case, bounds)


def check_last(kernel: Any, o: Options, dead: int = 0) -> None:
    """Under decays that leave nothing, the state is what the last token wrote: its weight is 1. Behind it lie `dead` no-ops.

    Each element is one product of an input and a few factors, whose roundings in a window of another length are some units of
    2^-24; the sum of such decays has units of 2^-11, and so has the weight where it is taken from two sums.
    """
    whole, alone = cases.draw(replace(o, strong=True)), cases.draw(replace(o, strong=True))
    if dead:
        whole.extra["live"] = torch.arange(o.t).expand(o.b, o.t) < o.t - dead
    for name in ("q", "k", "v", "g", "beta", "out"):
        setattr(alone, name, getattr(alone, name)[:, o.t - dead - 1 : o.t - dead])
    for case in (whole, alone):
        case.call(kernel)
    assert_one_product(whole.S[whole.named], alone.S[whole.named])


def assert_one_product(S: torch.Tensor, alone: torch.Tensor) -> None:
    """States that hold one token each, as `check_last` says."""
    apart = (S.double() - alone.double()).abs()
    assert (apart <= 2.0**-18 * alone.double().abs()).all(), "the newest token's weight is not what it is alone"


def sizes_of(module: ModuleType, case: Case, **more: int) -> dict[str, Any]:
    """What a formula of bytes is told of a case beside its axes."""
    sizes = {"state": case.S.element_size(), "io": case.q.element_size(), "channel": case.options.channel, **more}
    return {name: size for name, size in sizes.items() if name in signature(module.traffic_bytes).parameters}


def check_moved(
    case: Case,
    run: Callable[[], object],
    expected: int | Callable[[Memory], int],
    reads: int,
    writes: int,
    counted: Mapping[str, Tensor] | None = None,
    **apart: Tensor,
) -> None:
    """The bytes of a formula cross the bus; the states are asked for and stored so often, and no access is astray.

    `counted` are further tensors that the formula counts, `apart` those that it leaves out.
    """
    with watch(**case.tensors, **(counted or {}), slots=case.slots, **apart) as seen:
        run()
    left_out = sum(seen.loaded(name).distinct + seen.stored(name).distinct for name in ("slots", *apart))
    assert seen.distinct_bytes() - left_out == (expected if isinstance(expected, int) else expected(seen))
    states = case.S[: case.options.b].numel() * case.S.element_size()
    assert seen.loaded("S").requested == reads * states
    assert seen.stored("S").requested == writes * states
    assert seen.outside == seen.races == []


def check_bytes(module: ModuleType, kernel: Any, o: Options, write: bool) -> None:
    case = cases.draw(o, padding=False)
    moved = module.traffic_bytes(o.b, o.t, o.g, o.h, o.k, o.v, **sizes_of(module, case), write_state=write)
    check_moved(case, lambda: case.call(kernel, write_state=write), moved, 1, int(write))


def check_far_heads(kernel: Any, o: Options) -> None:
    """Heads of the state beyond 2^31 elements are read and written."""
    near, case = cases.draw(o, padding=False), cases.draw(o, padding=False)
    case.S = far(near.S, 1)
    near.call(kernel)
    case.call(kernel)
    assert torch.equal(case.S, near.S)
    assert torch.equal(case.out, near.out)
