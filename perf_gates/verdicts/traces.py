"""Real outputs replayed with n-gram drafting: their own tau, which is never compared with a paper's.

    tokens     bytes, words with the preceding spaces, or pieces                                          (1)
    a step     the drafts of PNG(K, M) on the text so far; the longest prefix that matches the output is
               accepted, and one more token is emitted                                           (2)
    tau        tokens emitted over steps                                                                  (3)
    speed-up   tau times a plain step over a step with drafting, both as measured at a model's dims       (4)

A piece is what the tokenizers of GPT-2 and GPT-NeoX split a text into before they merge bytes: a word with the space before
it, a number, punctuation, spaces. No token is longer than a piece, and most pieces of a large vocabulary are one token.

A folder holds texts (`*.txt`: the first PROMPT tokens are the prompt), or lines of JSON with `prompt` and `output`
(`*.jsonl`). There is no fallback table: a root that has not occurred before is decoded plainly.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ssmspec_ref.draft.ngram import png

from ..files import head
from .measured import At, Missing, Results

PROMPT, MOST = 64, 1024
"""Default number of prompt tokens; most emitted tokens."""
WORD = re.compile(r"\s*\S+|\s+$")
PIECE = re.compile(r"'(?:[sdmt]|ll|ve|re)| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")
KINDS = ("byte", "word", "piece")


class TraceError(ValueError):
    """A folder without traces, or an invalid line."""


@dataclass(frozen=True)
class Trace:
    """One output: the prompt, and the text that followed."""

    name: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]


@dataclass(frozen=True)
class Replayed:
    """The result for one output, or for all."""

    name: str
    tokens: int
    steps: int

    @property
    def tau(self) -> float:
        return self.tokens / self.steps


def read(folder: Path, kind: str) -> list[Trace]:
    """Every trace of a folder, in the order of the names.

    Raises: TraceError for a folder without traces, a line that lacks a field, or an unknown kind of token.
    """
    if kind not in KINDS:
        raise TraceError(f"tokens is {kind!r}; it must be one of {', '.join(KINDS)}")
    found = [trace for file in sorted(folder.glob("*")) for trace in of_file(file, kind)]
    if not found:
        raise TraceError(f"{folder} has no *.txt and no *.jsonl with an output; give a folder of real outputs")
    return found


def of_file(file: Path, kind: str) -> Iterator[Trace]:
    """The traces of one file. Raises: TraceError."""
    known: dict[str, int] = {}
    if file.suffix == ".txt":
        tokens = tokens_of(file.read_text(), kind, known)
        if len(tokens) > PROMPT:
            yield Trace(file.name, tokens[:PROMPT], tokens[PROMPT:][:MOST])
    if file.suffix == ".jsonl":
        for number, line in enumerate(file.read_text().splitlines(), 1):
            try:
                held = json.loads(line)
                prompt, output = (tokens_of(held[name], kind, known) for name in ("prompt", "output"))
            except (ValueError, KeyError, TypeError) as error:
                raise TraceError(f"{file.name}, line {number}: {error!r}; give objects with a prompt and an output") from None
            if prompt and output:
                yield Trace(f"{file.name}:{number}", prompt, output[:MOST])


def tokens_of(text: str, kind: str, known: dict[str, int]) -> tuple[int, ...]:
    """(1). Words and pieces are numbered in order of appearance, in `known`."""
    if kind == "byte":
        return tuple(text.encode())
    rule = WORD if kind == "word" else PIECE
    return tuple(known.setdefault(part, len(known)) for part in rule.findall(text))


def replay(trace: Trace, tokens: int, drafts: int) -> Replayed:
    """(2) over one output."""
    whole = np.array(trace.prompt + trace.output, dtype=np.int64)
    table = np.zeros((int(whole.max()) + 1, 0, tokens), dtype=np.int64)
    at, steps = len(trace.prompt), 0
    while at < len(whole):
        rows = png(whole[:at], drafts, tokens, table)
        at += 1 + max((accepted(row, whole[at:-1].tolist()) for row in rows), default=0)
        steps += 1
    return Replayed(trace.name, len(trace.output), steps)


def accepted(row: Sequence[int], following: Sequence[int]) -> int:
    """How many drafts match the output; its last token is always the target's own."""
    same = [int(a) == int(b) for a, b in zip(row, following, strict=False)]
    return same.index(False) if False in same else len(same)


def table(replayed: Sequence[Replayed], results: Results, tokens: int, drafts: int) -> Iterator[str]:
    """A line for each output, one for all (3), and the speed-ups (4)."""
    yield from head("output | tokens | steps | tau")
    total = Replayed("all", sum(r.tokens for r in replayed), sum(r.steps for r in replayed))
    for one in (*replayed, total):
        yield f"| {one.name} | {one.tokens} | {one.steps} | {one.tau:.2f} |"
    yield ""
    name = f"end to end PNG({tokens},{drafts})"
    for shape in dict.fromkeys(at.shape for at in results.timings if at.operation == name):
        try:
            gain = (
                total.tau * results.us(At("bench", shape, "plain, window of 1", 1)) / results.us(At("bench", shape, name, 1))
            )
        except Missing:
            continue
        yield f"Traces, {shape}: speed-up {gain:.2f} at tau {total.tau:.2f}, with the measured steps of {name}."
