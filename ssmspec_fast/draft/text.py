"""A drafter with another tokenizer: its text is encoded again in the target's tokens.

    text  = decode(history), in the target's tokens                                             (1)
    ids   = encode(text), in the drafter's; only tokens that it has not read yet are fed      (2)
    draft = the drafter's greedy continuation, as text                                        (3)
    the draft in the target's tokens: for w = look_behind .. 0, encode(decode(last w tokens) + draft), if it begins with
    those w tokens; the rest                                                                    (4)

A drafted token is a point mass, so every draft is safe. The last `look_behind` tokens of (2) are fed to a copy, because the
next text may tokenize them differently. Tokenizers run on the host, so the host waits for the drafter.
Source: Mamba Drafters, table 4, does not say how; the text round trip of assisted generation in transformers.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from ssmspec_ref.errors import ParameterError

from ..engine.sequences import Sequences
from ..engine.window import Proposal, Window
from ..models.model import Model
from ..operations import Operations
from ..operations.slots import sent
from ..operations.torch_ops import TorchOperations
from . import Drafter
from .rows import Rows
from .shapes import check_nodes


class Tokenizer(Protocol):
    """Text to tokens and back, adding nothing at either end."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: list[int]) -> str: ...


class TextDrafter(Drafter):
    """At most `tokens` of the target's tokens from at most `steps` of the drafter's (None: as many).

    `cache` counts the drafter's tokens.

    Raises: ParameterError (tokens, steps or look_behind below 1), MemoryRefused.
    """

    follows = True

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
                raise ParameterError(f"{name} is {count}; it must be at least 1")
        check_nodes(1 + max(tokens, steps))
        self.model, self.own, self.target = model, own, target
        self.tokens, self.steps, self.look_behind, self.nodes = tokens, steps, look_behind, 1 + tokens
        used = TorchOperations() if operations is None else operations
        self.rows = Rows(model, used, slots=slots, width=1, cache=cache + steps, window=look_behind, memory=memory)
        self.decoder, self.cache = self.rows.decoder, cache
        self.fed: dict[int, list[int]] = {}

    @property
    def held(self) -> int:
        return self.rows.decoder.pools.bytes

    def start(self, sequences: Sequences, slots: Tensor) -> None:
        """Raises: ParameterError for an engine with more slots."""
        if sequences.tokens.shape[0] > self.rows.slots:
            raise ParameterError(
                f"the engine has {sequences.tokens.shape[0]} slots, but the drafter {self.rows.slots}; "
                "build both with the same number"
            )
        for slot in slots.tolist():
            self.fed.pop(slot, None)

    def release(self, slots: Tensor) -> None:
        for slot in slots.tolist():
            self.fed.pop(slot, None)

    def propose(self, sequences: Sequences, slots: Tensor) -> Proposal:
        tokens = torch.zeros((len(slots), self.nodes), dtype=torch.int64)
        lengths = torch.ones(len(slots), dtype=torch.int64)
        rows = {slot: row for row, slot in enumerate(slots.tolist()) if slot >= 0}
        for slot, draft in self.draft(unended(sequences, list(rows))).items():
            draft = draft[: self.tokens]
            lengths[rows[slot]] += len(draft)
            tokens[rows[slot], 1 : 1 + len(draft)] = torch.tensor(draft, dtype=torch.int64)
        tokens = tokens.to(slots.device)
        tokens[:, 0] = sequences.roots(slots)
        return Proposal(Window(tokens, slots, lengths.to(slots.device)))

    def draft(self, histories: dict[int, list[int]]) -> dict[int, list[int]]:
        """(1) to (4), by slot: no draft if the drafter has no room or no token for the text."""
        ids = {slot: self.own.encode(self.target.decode(history)) for slot, history in histories.items()}  # (1)
        ids = {slot: x for slot, x in ids.items() if 0 < len(x) <= self.cache}
        found = {}
        for slot, said in self.written(ids).items():
            text = self.text(ids[slot], said)
            found[slot] = retokenised(text, histories[slot], self.target, self.look_behind)  # (4)
        return found

    def text(self, ids: Sequence[int], said: Sequence[int]) -> str:
        """The text of the new tokens after the others: some tokenizers write a space depending on the tokens before."""
        tail = list(ids[-self.look_behind :])
        before, whole = self.own.decode(tail), self.own.decode([*tail, *said])
        return whole[len(before) :] if whole.startswith(before) else self.own.decode(list(said))

    def written(self, ids: dict[int, list[int]]) -> dict[int, list[int]]:
        """The drafter's continuation of each text (2) (3), all in step."""
        if not ids:
            return {}
        kept = {slot: x[: max(0, len(x) - self.look_behind)] for slot, x in ids.items()}
        fresh = [slot for slot, x in kept.items() if slot not in self.fed or x[: len(self.fed[slot])] != self.fed[slot]]
        if fresh:
            self.rows.decoder.prefill([[*kept[slot], 0] for slot in fresh], fresh)
            self.fed |= {slot: kept[slot] for slot in fresh}
        slots = sent(list(ids), self.model.device)
        beside = self.rows.beside(slots, 1)
        self.feed([x[len(self.fed[slot]) :] for slot, x in kept.items()], slots)
        self.fed |= kept
        self.rows.copy(slots[:, None], beside)
        logits = self.feed([x[len(kept[slot]) :] for slot, x in ids.items()], beside[:, 0])
        said = [logits.argmax(1)]
        while len(said) < self.steps:
            said.append(self.rows.step(said[-1][:, None], beside)[:, 0].argmax(1))
        return dict(zip(ids, torch.stack(said, dim=1).tolist(), strict=True))

    def feed(self, ids: Sequence[Sequence[int]], rows: Tensor) -> Tensor:
        """Reads tokens into each row, in pieces of the look-behind; the logits after the last of each (b, i)."""
        found = torch.zeros((len(ids), self.model.config.vocabulary), device=rows.device)
        for first in range(0, max(map(len, ids)), self.look_behind):
            parts = [x[first : first + self.look_behind] for x in ids]
            filled = [[*part, *[0] * (self.look_behind - len(part))] for part in parts]
            tokens, count = sent(filled, rows.device), sent([len(part) for part in parts], rows.device)
            logits = self.rows.run(tokens, torch.where(count > 0, rows, -1), count)
            found = torch.where((count > 0)[:, None], logits.to(found.dtype), found)
        return found


def unended(sequences: Sequences, slots: list[int]) -> dict[int, list[int]]:
    """The tokens of the sequences that have not ended, by slot."""
    rows = sent(slots, sequences.tokens.device)
    found = torch.cat([sequences.length[rows, None], sequences.ended[rows, None].long(), sequences.tokens[rows]], dim=1)
    return {slot: tokens[:n] for slot, (n, over, *tokens) in zip(slots, found.tolist(), strict=True) if not over}


def retokenised(text: str, history: Sequence[int], target: Tokenizer, look_behind: int) -> list[int]:
    """The target's tokens of a text that continues the text of a history (4)."""
    for w in range(min(look_behind, len(history)), 0, -1):
        tail = list(history[len(history) - w :])
        ids = target.encode(target.decode(tail) + text)
        if ids[:w] == tail:
            return ids[w:]
    return target.encode(text)
