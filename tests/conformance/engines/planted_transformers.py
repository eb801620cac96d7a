"""transformers with a fault: its own Python is patched, then its adapter runs. For the engine's environment, without ours.

python planted_transformers.py ADAPTER FAULT
"""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers.cache_utils import DynamicLayer
from transformers.generation.candidate_generator import AssistedCandidateGenerator
from transformers.models.bamba import modeling_bamba as bamba
from transformers.models.mamba2 import modeling_mamba2 as mamba2

LAYERS = 3
FAULTS: dict[str, Callable[[], None]] = {}


def fault(plant: Callable[[], None]) -> Callable[[], None]:
    FAULTS[plant.__name__] = plant
    return plant


@fault
def padding_enters_the_state() -> None:
    """The states of shorter prompts of a batch have read the padding."""
    mamba2.apply_mask_to_padding_states = lambda hidden_states, attention_mask: hidden_states


def oldest(self: Any, remove: int) -> None:
    """Remove as many tokens as `crop`, at the wrong end."""
    if remove and self.is_initialized:
        self.keys, self.values = self.keys[..., abs(remove) :, :], self.values[..., abs(remove) :, :]


@fault
def rejected_drafts_stay() -> None:
    """The oldest tokens are removed from keys and values, not the rejected drafts."""
    DynamicLayer.crop = oldest


@fault
def the_drafter_keeps_rejected_drafts() -> None:
    """The same of the drafter alone."""
    right, cropped = AssistedCandidateGenerator._update_past_and_masks, DynamicLayer.crop

    def update(self: Any, *given: Any, **named: Any) -> Any:
        DynamicLayer.crop = oldest
        try:
            return right(self, *given, **named)
        finally:
            DynamicLayer.crop = cropped

    AssistedCandidateGenerator._update_past_and_masks = update


@fault
def the_state_of_the_request_before() -> None:
    """A prompt begins from the state that the prompt before it left in the same layer."""
    right, last, calls = mamba2.mamba2_chunk_scan, dict[int, Any](), [0]

    def scan(x: Any, *given: Any, **named: Any) -> Any:
        layer = calls[0] % LAYERS
        calls[0] += 1
        there = last.get(layer)
        if there is not None and len(there) == len(x):
            named["initial_states"] = there
        found = right(x, *given, **named)
        last[layer] = found[1].clone()
        return found

    mamba2.mamba2_chunk_scan = scan


@fault
def a_decay_that_was_dropped() -> None:
    """Mamba-2 layers of Bamba without their decay."""
    right = bamba.BambaMixer.forward

    def forward(self: Any, *given: Any, **named: Any) -> Any:
        self.A_log.data.fill_(-30.0)
        return right(self, *given, **named)

    bamba.BambaMixer.forward = forward


if __name__ == "__main__":
    adapter, name = Path(sys.argv[1]), sys.argv[2]
    sys.path.insert(0, str(adapter.parent))
    for package in ("mamba_ssm", "causal_conv1d", "fla", "kernels"):
        sys.modules.setdefault(package, None)  # type: ignore[arg-type]
    FAULTS[name]()
    runpy.run_path(str(adapter), run_name="__main__")
