"""Prompts from held-out files: `python -m ssmspec_fast.training.prompts FOLDER` writes them there.

A prompt ends after the first line of a function or class, and holds up to `LENGTH` bytes of the lines before it. The files
take turns, each giving its place with the least SHA-256 first (1), so that neither long files nor early lines dominate, and
the same files give the same prompts.
"""

import hashlib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ..cli.refusal import run_command
from . import corpus

COUNT = 200
LENGTH = 256
FILE = "prompts.jsonl"
PLACE = re.compile(rb"^[ ]*(?:def|class) .*:\n", re.MULTILINE)


@dataclass(frozen=True)
class Prompt:
    """`prompt` is the text of `path` that ends at byte `end`."""

    path: str
    end: int
    prompt: str


def cut(held_out: dict[str, bytes], count: int = COUNT) -> list[Prompt]:
    """`count` prompts, sorted by path and place.

    Raises: ValueError if the files have fewer places.
    """
    waiting = [list(places(path, text)) for path, text in sorted(held_out.items())]
    found: list[Prompt] = []
    while len(found) < count and any(waiting):
        found += [prompts.pop(0) for prompts in waiting if prompts]
        waiting = [prompts for prompts in waiting if prompts]
    if len(found) < count:
        raise ValueError(f"{len(held_out)} held-out files give {len(found)} prompts, but {count} are needed")
    return sorted(found[:count], key=lambda p: (p.path, p.end))


def places(path: str, text: bytes) -> Iterator[Prompt]:
    """The prompts of a file in the order of (1); texts that are not ASCII are left out."""
    ends = [match.end() for match in PLACE.finditer(text)]
    for end in sorted(ends, key=lambda end: hashlib.sha256(f"{path}:{end}".encode()).digest()):  # (1)
        part = text[max(0, end - LENGTH) : end]
        if end > LENGTH:
            part = part[part.index(b"\n") + 1 :]  # whole lines
        if part and part.isascii():
            yield Prompt(path, end, part.decode())


def write(folder: Path, held_out: dict[str, bytes], count: int = COUNT) -> Path:
    """One JSON object a line. Raises: ValueError."""
    file = folder / FILE
    lines = [json.dumps(asdict(prompt)) for prompt in cut(held_out, count)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def read(file: Path) -> list[Prompt]:
    return [Prompt(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]


def main(folder: Path) -> None:
    print(write(folder, corpus.read().held_out))


if __name__ == "__main__":
    sys.exit(run_command(main))
