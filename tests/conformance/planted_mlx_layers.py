"""Faults patched into mlx-lm's Python: each must be caught by the cases of its operation, which the unpatched code passes.

Run in an environment that has mlx-lm: python planted_mlx_layers.py
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

from conformance.adapters import mlx_lm
from conformance.adapters.peer_kernels.sources import module
from conformance.judge.verdict import judge
from conformance.run.plan import Selection, plan


def otherwise(right: Any, **changed: Any) -> Any:
    """The same function with other values of some arguments, however it is called."""

    def run(*given: Any, **named: Any) -> Any:
        bound = signature(right).bind(*given, **named)
        bound.arguments |= changed
        return right(*bound.args, **bound.kwargs)

    return run


def without_state(right: Any) -> Any:
    """The state that is given is not read."""
    return otherwise(right, state=None)


def without_lengths(right: Any) -> Any:
    """The state is that of the last column, whatever the length of a row."""
    return otherwise(right, lengths=None)


def without_limit(right: Any) -> Any:
    """dt is not limited."""
    return otherwise(right, time_step_limit=(0.0, float("inf")))


def without_mask(right: Any) -> Any:
    """Masked tokens advance the state of the delta rule."""
    return otherwise(right, mask=None)


def undecayed(right: Any) -> Any:
    """The state of the delta rule does not decay."""
    return lambda q, k, v, g, *rest: right(q, k, v, g * 0 + 1, *rest)


def in_bf16(right: Any) -> Any:
    """The state of the delta rule is rounded to bf16 after a call."""

    def run(*given: Any) -> Any:
        mx = module("mlx.core")
        y, state = right(*given)
        return y, state.astype(mx.bfloat16).astype(mx.float32)

    return run


def untouched(right: Any) -> Any:
    """The window of the convolution has been told of no lengths."""

    def run(self: Any, inputs: Any, cache: Any, mask: Any) -> Any:
        kept, cache.lengths = cache.lengths, None
        y = right(self, inputs, cache, mask)
        cache.lengths = kept
        return y

    return run


SSM, DELTA = "mlx_lm.models.ssm", "mlx_lm.models.gated_delta"
FAULTS: tuple[tuple[str, str, Callable[[Any], Any], str, str], ...] = (
    (SSM, "ssm_update", without_lengths, "ssm_update", "ssd.scan_masked"),
    (DELTA, "gated_delta_ops", without_mask, "gated_delta_ops", "delta.scan_masked"),
    (DELTA, "gated_delta_ops", undecayed, "gated_delta_ops, bf16", "delta.scan"),
    (DELTA, "gated_delta_ops", in_bf16, "gated_delta_ops, normalize_qk", "delta.scan"),
    (DELTA, "gated_delta_ops", in_bf16, "qwen3_next", "layer.step"),
    (DELTA, "gated_delta_ops", undecayed, "kimi_linear", "layer.prefill"),
    ("mlx_lm.models.mamba2", "ssm_update", without_state, "mamba2", "layer.continue"),
    ("mlx_lm.models.granitemoehybrid", "ssm_update", without_limit, "granitemoehybrid", "layer.prefill"),
    ("mlx_lm.models.mamba2.Mamba2Block", "_conv", untouched, "mamba2", "layer.right_pad"),
)
"""Where it is, what is patched, how, and the subject and the operation that must fail."""


@contextmanager
def patched(home: str, name: str, plant: Callable[[Any], Any]) -> Iterator[None]:
    """An attribute of a module, or of a class in one, replaced."""
    last = home.rpartition(".")[2]
    place = getattr(module(home.rpartition(".")[0]), last) if last[0].isupper() else module(home)
    right = getattr(place, name)
    setattr(place, name, plant(right))
    try:
        yield
    finally:
        setattr(place, name, right)


def failures(subject: str, operation: str) -> int:
    """How many cases of the tier smoke have an error beyond the bound, or are not numbers."""
    jobs, _ = plan({"mlx_lm": mlx_lm.adapter()}, Selection(subject=subject, operation=operation))
    return sum(judge(job.specification, job.capability, job.case).kind in ("bound", "nan") for job in jobs)


def main() -> None:
    missed = []
    for home, name, plant, subject, operation in FAULTS:
        right = failures(subject, operation)
        with patched(home, name, plant):
            wrong = failures(subject, operation)
        print(f"{subject}, {operation}: {wrong} cases fail of {plant.__name__}, {right} without it", flush=True)
        missed += [f"{subject}, {operation}, {plant.__name__}"] if right or not wrong else []
    if missed:
        raise SystemExit(f"not told apart: {'; '.join(missed)}")


if __name__ == "__main__":
    main()
