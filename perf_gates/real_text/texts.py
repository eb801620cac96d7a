"""The texts of the tables: recorded outputs of a real model, and code of this repository that is edited by a seed.

`recorded`: outputs that nobody here wrote, as `gates traces` reads them. `edited`: a file, followed by the same lines with
some of them changed; a model that is asked to edit a file emits such a text. Both are forced on a model (`forced`), whose
own text they are not.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import conformance
import ssmspec_ref

from ..verdicts.traces import Trace, TraceError, of_file, replay

KIND = "piece"
DRAFTS, CHAINS, AT_LEAST = 7, 1, 2.2
"""The n-gram drafts by which outputs are counted, and the tokens a step from which the target of batch 1 holds."""
LOOP, PERIOD = 128, 64
"""An output loops if its last LOOP tokens repeat with a period of at most PERIOD."""
SOURCES = tuple(Path(str(package.__file__)).parent for package in (ssmspec_ref, conformance))
NAMES = ("value", "other", "left", "right", "first", "last", "given", "found")


@dataclass(frozen=True)
class Text:
    """A prompt, and the tokens after it. `tau`: the tokens a step of n-gram drafts, as `gates traces` counts them."""

    name: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    tau: float = 0.0

    @property
    def whole(self) -> tuple[int, ...]:
        return self.prompt + self.output

    @property
    def loops(self) -> bool:
        end = self.output[-LOOP:]
        return len(end) == LOOP and any(end[p:] == end[:-p] for p in range(1, 1 + PERIOD))


def recorded(folder: Path, length: int) -> list[Text]:
    """The outputs of a folder, cut to `length` tokens, by name; shorter ones, and files of prompts alone, are left out.

    Raises: TraceError if there are none.
    """
    every = [trace for file in sorted(folder.glob("*.jsonl")) if has_outputs(file) for trace in of_file(file, KIND)]
    cut = [Trace(trace.name, trace.prompt, trace.output[:length]) for trace in every if len(trace.output) >= length]
    if not cut:
        raise TraceError(f"{folder} has no *.jsonl with outputs of {length} tokens; give a folder of real outputs")
    return [Text(t.name, t.prompt, t.output, replay(t, DRAFTS, CHAINS).tau) for t in cut]


def has_outputs(file: Path) -> bool:
    """Whether the first line of a file has an output, and not a prompt alone."""
    with file.open(encoding="utf-8") as lines:
        return '"output"' in next(lines, "")


def spread(texts: Sequence[Text], count: int) -> list[Text]:
    """`count` texts, at equal distances."""
    return [texts[n * len(texts) // count] for n in range(min(count, len(texts)))]


def edited(count: int, length: int, encode: Callable[[str], list[int]], seed: int = 0) -> list[Text]:
    """`count` files of this repository with edits: each prompt holds a file's beginning, each output the same with edits."""
    files = [file for folder in SOURCES for file in sorted(folder.rglob("*.py")) if file.stat().st_size > 4 * length]
    draw = random.Random(seed)
    found = []
    for file in sorted(draw.sample(files, count)):
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        text, again = "".join(lines), "".join(changed(lines, draw))
        found.append(Text(file.name, tuple(encode(text)[: 2 * length]), tuple(encode(again)[:length])))
    return found


def changed(lines: Sequence[str], draw: random.Random) -> Iterator[str]:
    """One line in ten is left out, doubled, or has a word replaced."""
    for line in lines:
        words = [word for word in line.split() if word.isidentifier()]
        edit = draw.randrange(30)
        if edit == 0:
            continue
        yield line.replace(draw.choice(words), draw.choice(NAMES)) if edit == 1 and words else line
        if edit == 2:
            yield line
