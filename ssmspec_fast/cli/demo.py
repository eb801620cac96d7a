"""`ssmspec generate --demo`: a Python function, completed speculatively and plainly, and the two compared token by token."""

from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.text import Text

from ssmspec_ref.near_ties import first_difference

from ..generator import Generation, Generator, Piece
from ..models.build import Parts
from .shipped import that_ships

TARGET, DRAFTER = "mamba2", "mamba2-drafter"
PROMPT = '''class Pool:
    """A pool of items."""

    def __init__(self, items=()):
        self._items = list(items)

    def __len__(self):
        return len(self._items)

    def '''


def run(
    console: Console,
    progress: Console,
    target: Path | None,
    drafter: str | None,
    prompt: str,
    max_tokens: int,
    given: dict[str, Any],
) -> bool:
    """Whether the speculative tokens equal those of plain decoding. Both run on one thread: the models are too small for
    more.

    Raises: ParameterError if the shipped models are missing, and as `api.load`.
    """
    target = that_ships(TARGET) if target is None else target
    drafter = str(that_ships(DRAFTER)) if drafter is None else drafter
    room: dict[str, Any] = {"slots": 1, "cache": len(prompt.encode()) + max(max_tokens, 1)}
    parts = Parts(target, drafter, **given, **room)
    plain = Parts(target, None, None, **{k: v for k, v in given.items() if k != "method"}, **room).load()
    progress.print(str(parts.memory), markup=False)
    fast = parts.load()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return compared(console, plain, fast, prompt, max_tokens)
    finally:
        torch.set_num_threads(threads)


def compared(console: Console, plain: Generator, fast: Generator, prompt: str, max_tokens: int) -> bool:
    """Runs both, showing the speculative one as it goes."""
    console.print(Text(prompt, style="dim"), end="")
    spoken = fast.generate([prompt], fast.settings(max_tokens), lambda piece: show(console, piece))
    console.print("\n")
    return judged(console, spoken, plain.generate([prompt], plain.settings(max_tokens)))


def show(console: Console, piece: Piece) -> None:
    console.print(Text.assemble((piece.drafts, "bold green"), piece.own), end="")


def judged(console: Console, spoken: Generation, plain: Generation) -> bool:
    """Prints the acceptance, and whether the tokens equal those of plain decoding; no speed, because that of such small
    models says nothing about larger ones."""
    fast, slow = spoken.statistics, plain.statistics
    accepted = fast.emitted - fast.windows
    console.print(Text.assemble(("green", "bold green"), f": {accepted} of {fast.emitted} tokens are accepted drafts"))
    console.print(f"tokens per step: {fast.tau:.2f} ({fast.windows} calls of the target instead of {slow.windows})")
    at = first_difference(spoken.completions[0].tokens, plain.completions[0].tokens)
    console.print(f"identical to plain decoding: {'yes' if at is None else f'no, first difference at token {at}'}")
    return at is None
