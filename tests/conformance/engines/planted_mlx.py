"""mlx-lm with a fault: its own Python is patched, then its adapter runs. For the engine's environment, without ours.

python planted_mlx.py ADAPTER FAULT
"""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models import mamba2, qwen3_5
from mlx_lm.models.cache import ArraysCache

GENERATE: Any = __import__("mlx_lm.generate", fromlist=["generate_step"])
FAULTS: dict[str, Callable[[], None]] = {}


def fault(plant: Callable[[], None]) -> Callable[[], None]:
    FAULTS[plant.__name__] = plant
    return plant


@fault
def a_joining_request_loses_its_state() -> None:
    """A request that joins a batch continues from a zero state."""
    right = ArraysCache.extend

    def extend(self: Any, other: Any) -> None:
        other.cache = [one if one is None else mx.zeros_like(one) for one in other.cache]
        right(self, other)

    ArraysCache.extend = extend


@fault
def chunks_begin_from_nothing() -> None:
    """Several tokens after a state begin from a zero state."""
    right = mamba2.ssm_update

    def update(x: Any, *given: Any) -> Any:
        return right(x, *given[:6], None, *given[7:]) if x.shape[1] > 1 else right(x, *given)

    mamba2.ssm_update = update


@fault
def window_of_the_convolution_lost() -> None:
    """Several tokens after a state begin from a window of zeros."""
    right = mamba2.Mamba2Block._conv

    def conv(self: Any, inputs: Any, cache: Any, mask: Any) -> Any:
        if inputs.shape[1] > 1 and cache is not None and cache[0] is not None:
            cache[0] = mx.zeros_like(cache[0])
        return right(self, inputs, cache, mask)

    mamba2.Mamba2Block._conv = conv


@fault
def one_rejected_draft_stays() -> None:
    """The cache of keys and values is trimmed by one token less."""
    right = GENERATE.trim_prompt_cache
    GENERATE.trim_prompt_cache = lambda cache, tokens: right(cache, max(tokens - 1, 0))


@fault
def a_decay_that_was_dropped() -> None:
    """The delta rule without its decay."""
    right = qwen3_5.gated_delta_update

    def update(q: Any, k: Any, v: Any, a: Any, b: Any, decay: Any, *given: Any, **named: Any) -> Any:
        return right(q, k, v, a, b, mx.full(decay.shape, -30.0), *given, **named)

    qwen3_5.gated_delta_update = update


if __name__ == "__main__":
    adapter, name = Path(sys.argv[1]), sys.argv[2]
    FAULTS[name]()
    sys.path.insert(0, str(adapter.parent))
    runpy.run_path(str(adapter), run_name="__main__")
