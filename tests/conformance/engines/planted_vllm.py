"""vLLM with a fault: its own Python is patched, then its door runs. For the engine's environment, without ours.

python planted_vllm.py DOOR FAULT
"""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

FAULTS: dict[str, Callable[[], None]] = {}


def fault(plant: Callable[[], None]) -> Callable[[], None]:
    FAULTS[plant.__name__] = plant
    return plant


def before_a_mixer(change: Callable[[Any, Any], None]) -> None:
    """`change(mixer, metadata)` before every run of a Mamba-2 layer."""
    mixers, context = (
        import_module(f"vllm.{name}") for name in ("model_executor.layers.mamba.mamba_mixer2", "forward_context")
    )
    right = mixers.MambaMixer2.conv_ssm_forward

    def forward(self: Any, *given: Any, **named: Any) -> Any:
        every = context.get_forward_context().attn_metadata
        if every is not None:
            change(self, every[self.prefix])
        return right(self, *given, **named)

    mixers.MambaMixer2.conv_ssm_forward = forward


@fault
def a_decay_that_was_dropped() -> None:
    """Mamba-2 layers without their decay."""
    before_a_mixer(lambda mixer, metadata: mixer.A.data.fill_(-1e-13))


@fault
def the_state_of_the_request_before() -> None:
    """A prompt begins from what is in its slot."""

    def change(mixer: Any, metadata: Any) -> None:
        if metadata.has_initial_states_p is not None:
            metadata.has_initial_states_p.fill_(True)
            metadata.prep_initial_states = True

    before_a_mixer(change)


@fault
def chunks_begin_from_nothing() -> None:
    """A later chunk of a prompt reads neither the state nor the window of the one before."""

    def change(mixer: Any, metadata: Any) -> None:
        if metadata.has_initial_states_p is not None:
            metadata.has_initial_states_p.fill_(False)

    before_a_mixer(change)


@fault
def every_draft_is_accepted() -> None:
    """Drafts are not compared with the target's tokens."""
    home = import_module("vllm.v1.sample.rejection_sampler")
    right = home.rejection_sample

    def accepted(drafts: Any, *given: Any, **named: Any) -> Any:
        logits = next(one for one in given if getattr(one, "ndim", 0) == 2 and one.shape[0] == len(drafts))
        logits[range(len(drafts)), drafts.long()] = logits.max() + 1
        return right(drafts, *given, **named)

    home.rejection_sample = accepted


@fault
def a_hit_of_another_prompt() -> None:
    """Blocks of the cache of prefixes are known by their place alone."""
    home = import_module("vllm.v1.core.kv_cache_utils")
    right = home.hash_block_tokens

    def hashed(function: Any, parent: Any, tokens: Any, *more: Any) -> Any:
        return right(function, parent, (0,) * len(tokens), *more)

    home.hash_block_tokens = hashed


if __name__ == "__main__":
    door, name = Path(sys.argv[1]), sys.argv[2]
    sys.path.insert(0, str(door.parent))
    vllm, lines = (import_module(module) for module in (door.stem, "lines"))
    FAULTS[name]()
    lines.serve(vllm.Door())
