"""`ssmspec generate --demo`: a Python function, completed speculatively and plainly, and the two compared token by token."""

from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.text import Text

from .api import Completion, Generation, Generator, Piece
from .errors import BrokenFile
from .parts import Parts

SHIPPED = Path(__file__).parent / "checkpoints"
WARM = 4
RUNS = 2
"""Of either, in turn: the speed is that of the fastest, which other work on the machine has slowed least."""
TARGET, DRAFTER = "mamba2", "mamba2-drafter"
PROMPT = '''def read_lines(path, encoding="utf-8"):
    """Return the lines of a file as a list."""
'''


def run(
    console: Console,
    progress: Console,
    target: Path | None,
    drafter: str | None,
    prompt: str,
    max_tokens: int,
    given: dict[str, Any],
) -> bool:
    """Whether the speculative tokens are those of plain decoding. Both run on one thread: the models are too small for more.

    Raises: BrokenFile where the models that ship are not there, and as `api.load`.
    """
    target = shipped(TARGET) if target is None else target
    drafter = str(shipped(DRAFTER)) if drafter is None else drafter
    room: dict[str, Any] = {"slots": 1, "cache": len(prompt.encode()) + max(max_tokens, WARM)}
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
    """Run both, show the speculative one as it goes."""
    for engine in (plain, fast):
        engine.generate([prompt], engine.settings(WARM))  # what is done once only is not measured
    console.print(Text(prompt, style="dim"), end="")
    spoken = fast.generate([prompt], fast.settings(max_tokens), lambda piece: show(console, piece))
    console.print("\n")
    found = [(spoken, plain.generate([prompt], plain.settings(max_tokens)))]
    for _ in range(RUNS - 1):
        again = fast.generate([prompt], fast.settings(max_tokens))
        found.append((again, plain.generate([prompt], plain.settings(max_tokens))))
    return judged(console, found)


def shipped(name: str) -> Path:
    """Raises: BrokenFile, with the command that makes it."""
    folder = SHIPPED / name
    if not (folder / "config.json").is_file():
        raise BrokenFile(
            f"{folder} is missing; train the models on a GPU by python -m ssmspec_fast.training --out {SHIPPED}, "
            "or give --checkpoint and --drafter"
        )
    return folder


def show(console: Console, piece: Piece) -> None:
    console.print(Text.assemble((piece.drafts, "bold green"), piece.own), end="")


def judged(console: Console, found: list[tuple[Generation, Generation]]) -> bool:
    """Print what it brought, and the verdict on runs of either: speculative, plain."""
    fast, slow = (min((run.statistics for run in runs), key=lambda s: s.seconds) for runs in zip(*found, strict=True))
    accepted = fast.emitted - fast.windows
    console.print(Text.assemble(("green", "bold green"), f": {accepted} of {fast.emitted} tokens were drafts that stood"))
    console.print(f"tokens per step: {fast.tau:.2f} ({fast.windows} calls of the target instead of {slow.windows})")
    ratio = fast.per_second / slow.per_second if slow.per_second else 0.0
    console.print(
        f"speed: {fast.per_second:.1f} tokens/s, plain decoding {slow.per_second:.1f} tokens/s: {ratio:.2f} times as fast"
    )
    places = [difference(spoken.completions[0], plain.completions[0]) for spoken, plain in found]
    at = min((place for place in places if place is not None), default=None)
    console.print(f"identical to plain decoding: {'yes' if at is None else f'no, first difference at token {at}'}")
    return at is None


def difference(one: Completion, other: Completion) -> int | None:
    """The first token, from 0, at which two completions differ, or the end of the shorter one."""
    for n, (a, b) in enumerate(zip(one.tokens, other.tokens, strict=False)):
        if a != b:
            return n
    return None if len(one.tokens) == len(other.tokens) else min(len(one.tokens), len(other.tokens))
