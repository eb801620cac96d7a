"""A drafter of another tokenizer, through its text: what it writes is read again in the target's tokens.

    text  = decode(history), in the target's tokens                                             (1)
    ids   = encode(text), in the drafter's; those it holds already stay, the others are fed     (2)
    draft = what the drafter goes on to write, greedily, as text                                (3)
    the draft in the target's tokens: for w = look_behind .. 0, encode(decode(last w tokens) + draft), if it begins with
    those w tokens; the rest                                                                    (4)

A drafted token is a point mass, whatever went wrong on the way. The last `look_behind` tokens of (2) are fed to a copy: the
next text may join them otherwise. Tokenizers run on the host, so that this drafter waits for it.
Source: Mamba Drafters, table 4, does not say how; the text round trip of assisted generation in transformers.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from ssmspec_ref.errors import ParameterError

from ..model import Model
from ..operations import Operations
from ..operations.torch_ops import TorchOperations
from ..sequences import Sequences
from ..window import Proposal, Verdict, Window
from .rows import Rows


class Tokenizer(Protocol):
    """Text to tokens and back, with nothing added at either end."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: list[int]) -> str: ...


class TextDrafter:
    """At most `tokens` of the target's tokens from at most `steps` of the drafter's (None: as many).

    `cache` counts the drafter's tokens.

    Raises: ParameterError (tokens, steps or look_behind below 1), MemoryRefused.
    """

    law, drafts, trees = "point_mass", 1, False

    def __init__(
        self,
        model: Model,
        own: Tokenizer,
        target: Tokenizer,
        tokens: int,
        operations: Operations | None = None,
        *,
        steps: int | None = None,
        look_behind: int = 4,
        slots: int = 8,
        cache: int = 4096,
        memory: int | None = None,
    ) -> None:
        steps = tokens if steps is None else steps
        for name, count in (("tokens", tokens), ("steps", steps), ("look_behind", look_behind)):
            if count < 1:
                raise ParameterError(f"{name} came as {count}; give at least 1")
        self.model, self.own, self.target = model, own, target
        self.tokens, self.steps, self.look_behind, self.nodes = tokens, steps, look_behind, 1 + tokens
        used = TorchOperations() if operations is None else operations
        self.rows = Rows(model, used, slots=slots, width=1, cache=cache + steps, window=1, memory=memory)
        self.decoder, self.cache = self.rows.decoder, cache
        self.fed: dict[int, list[int]] = {}

    def start(self, sequences: Sequences, slots: Tensor) -> None:
        """Raises: ParameterError for an engine with more slots."""
        if sequences.tokens.shape[0] > self.rows.slots:
            raise ParameterError(
                f"the engine has {sequences.tokens.shape[0]} slots, but the drafter {self.rows.slots}; give it as many"
            )
        for slot in slots.tolist():
            self.fed.pop(slot, None)

    def release(self, slots: Tensor) -> None:
        for slot in slots.tolist():
            self.fed.pop(slot, None)

    def observe(self, sequences: Sequences, proposal: Proposal, verdict: Verdict) -> None: ...

    def propose(self, sequences: Sequences, slots: Tensor) -> Proposal:
        tokens = torch.zeros((len(slots), self.nodes), dtype=torch.int64)
        lengths = torch.ones(len(slots), dtype=torch.int64)
        for row, slot in enumerate(slots.tolist()):
            if slot >= 0 and not bool(sequences.ended[slot]):
                history = sequences.tokens[slot, : int(sequences.length[slot])].tolist()
                draft = self.draft(slot, history)[: self.tokens]
                lengths[row] += len(draft)
                tokens[row, 1 : 1 + len(draft)] = torch.tensor(draft, dtype=torch.int64)
        tokens = tokens.to(slots.device)
        tokens[:, 0] = sequences.roots(slots)
        return Proposal(Window(tokens, slots, lengths.to(slots.device)))

    def draft(self, slot: int, history: list[int]) -> list[int]:
        """(1) to (4): silent where the drafter has no room or no token for the text."""
        ids = self.own.encode(self.target.decode(history))  # (1)
        if not ids or len(ids) > self.cache:
            return []
        said = self.written(slot, ids)
        return retokenised(self.text(ids, said), history, self.target, self.look_behind)  # (4)

    def text(self, ids: Sequence[int], said: Sequence[int]) -> str:
        """The text of the tokens said, as it follows the others: some tokenizers write a space by what stands before."""
        tail = list(ids[-self.look_behind :])
        before, whole = self.own.decode(tail), self.own.decode([*tail, *said])
        return whole[len(before) :] if whole.startswith(before) else self.own.decode(list(said))

    def written(self, slot: int, ids: list[int]) -> list[int]:
        """What the drafter writes after its tokens of the text (2) (3)."""
        device = self.model.device
        kept, fed = ids[: max(0, len(ids) - self.look_behind)], self.fed.get(slot)
        if fed is None or kept[: len(fed)] != fed:
            self.decoder.prefill([[*kept, 0]], [slot])
        else:
            self.feed(kept[len(fed) :], torch.tensor([[slot]], device=device))
        self.fed[slot] = kept
        row = self.rows.beside(torch.tensor([slot], device=device), 1)
        self.rows.copy(torch.tensor([[slot]], device=device), row)
        logits = self.feed(ids[len(kept) :], row)
        said = [int(logits.argmax())]
        while len(said) < self.steps:
            said.append(int(self.feed(said[-1:], row).argmax()))
        return said

    def feed(self, ids: Sequence[int], row: Tensor) -> Tensor:
        """Tokens into a row, one by one; the logits after the last."""
        logits = torch.zeros(1, device=row.device)
        for token in ids:
            logits = self.rows.step(torch.tensor([[token]], device=row.device), row)[0, 0]
        return logits


def retokenised(text: str, history: Sequence[int], target: Tokenizer, look_behind: int) -> list[int]:
    """The target's tokens of a text that continues the text of a history (4)."""
    for w in range(min(look_behind, len(history)), 0, -1):
        tail = list(history[len(history) - w :])
        ids = target.encode(target.decode(tail) + text)
        if ids[:w] == tail:
            return ids[w:]
    return target.encode(text)
