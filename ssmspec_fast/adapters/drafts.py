"""The drafters that read the text only, for the suite: histories lie in slots out of order."""

from functools import partial

import torch

from ssmspec_ref.contract import Capability, Limits, NumericContract, Subject
from ssmspec_ref.shapes import Array

from ..draft.ngram import NGram, PromptLookup
from ..engine.sequences import Sequences, new_sequences
from .tensors import apart


def filled(history: Array, device: str) -> tuple[Sequences, torch.Tensor]:
    """Sequences with these histories, and the slot of each."""
    rows, most = history.shape
    made, slots = new_sequences(2 * rows, most, (), (), device), apart(rows, device, 1)
    made.tokens[slots, :most] = torch.tensor(history, device=device).clamp(min=0)
    made.length[slots] = torch.tensor((history >= 0).sum(axis=1), device=device)
    return made, slots


def png(device: str, history: Array, drafts: int, tokens: int, table: Array) -> Array:
    drafter = NGram(tokens, drafts, torch.tensor(table, device=device))
    windows, lengths = drafter.windows(*filled(history, device))
    there = (lengths > 1)[..., None]
    found: Array = torch.where(there, windows[:, :, 1:], -1).cpu().numpy()
    return found


def lookup(device: str, history: Array, tokens: int, longest: int, choice: str) -> Array:
    window = PromptLookup(tokens, longest).propose(*filled(history, device)).window
    places = torch.arange(1, 1 + tokens, device=device)
    assert window.lengths is not None
    found: Array = torch.where(places < window.lengths[:, None], window.tokens[:, 1:], -1).cpu().numpy()
    return found


def subject(device: str, contract: NumericContract) -> Subject:
    last = Limits({"choice": ("last",)}, reason="the last occurrence is taken")
    runs = {
        "draft.png": Capability(partial(png, device), contract),
        "draft.lookup": Capability(partial(lookup, device), contract, last),
    }
    return Subject("drafts", runs, absent={"": "another part of the engine"})
