"""The extended model bigram: the most probable tokens after each token, each continued greedily.

    table[v, r, 0] = the r-th most probable token after v, from the empty state                     (1)
    table[v, r, t] = the most probable token after those before it                                  (2)

Source: arXiv:2411.03786, as Snakes and Ladders uses it.
"""

import torch
from torch import Tensor

from ssmspec_ref.errors import ParameterError

from ..models.model import Model
from ..operations import Operations
from ..operations.torch_ops import TorchOperations
from .rows import Rows


@torch.no_grad()
def bigram_table(model: Model, rows: int, tokens: int, operations: Operations | None = None, batch: int = 64) -> Tensor:
    """The table (vocabulary, rows, tokens), `batch` tokens at a time.

    Raises: ParameterError (rows, tokens or batch below 1, or more rows than the vocabulary has tokens).
    """
    vocabulary, device = model.config.vocabulary, model.device
    for name, count in (("rows", rows), ("tokens", tokens), ("batch", batch)):
        if count < 1:
            raise ParameterError(f"{name} is {count}; it must be at least 1")
    if rows > vocabulary:
        raise ParameterError(f"rows is {rows}, but only {vocabulary} tokens can follow; give at most that many")
    used = TorchOperations() if operations is None else operations
    held = Rows(model, used, slots=min(batch, vocabulary), width=rows, cache=1 + tokens, window=1, memory=None)
    table = torch.zeros((vocabulary, rows, tokens), dtype=torch.int64, device=device)
    for first in range(0, vocabulary, held.slots):
        seen = torch.arange(first, min(first + held.slots, vocabulary), device=device)
        slots = torch.arange(len(seen), device=device)
        held.decoder.prefill([[0]] * len(seen), slots.tolist())  # empty states
        logits = held.step(seen[:, None], slots[:, None])[:, 0]
        new = torch.argsort(logits, dim=-1, descending=True, stable=True)[:, :rows]  # (1)
        beside = held.beside(slots, rows)
        held.copy(slots[:, None].expand_as(beside), beside)
        table[seen, :, 0] = new
        for t in range(1, tokens):
            new = held.step(new, beside).argmax(-1)  # (2)
            table[seen, :, t] = new
    return table
