"""The text of the trained pair: sources and documentation that Python and its packages leave on the machine.

A file is held out when the first byte of the SHA-256 of its path is below HELD_OUT; so the choice depends on the path alone,
and not on the other files. The tokenizer is a byte-pair encoding of a part of the training text. The token END ends a text.
"""

import hashlib
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

KINDS = (".py", ".pyi", ".md", ".rst", ".txt")
HELD_OUT = 4
"""Of 256."""
MOST, LONGEST = 200_000_000, 400_000
"""Bytes of text, and of a file: longer ones are mostly tables."""
FOR_MERGES = 24_000_000
"""Bytes from which the merges are learnt."""
END = 0


@dataclass(frozen=True)
class Corpus:
    """Token ids to train on, and held-out files as text."""

    tokenizer: Any
    train: np.ndarray
    held_out: dict[str, str]
    files: int
    bytes: int


def folders() -> list[Path]:
    """The standard library and the installed packages."""
    paths = sysconfig.get_paths()
    return [Path(path) for path in dict.fromkeys((paths["stdlib"], paths["purelib"], paths["platlib"]))]


def first_byte(path: str) -> int:
    return hashlib.sha256(path.encode()).digest()[0]


def files(roots: list[Path]) -> Iterator[tuple[str, str]]:
    """Path and text of each file, in the order of the hashes of their paths; a text occurs once."""
    found = {}
    for root in roots:
        for file in root.rglob("*"):
            if file.suffix in KINDS and file.is_file() and 0 < file.stat().st_size <= LONGEST:
                found[file.relative_to(root).as_posix()] = file
    seen = set()
    for path in sorted(found, key=lambda path: hashlib.sha256(path.encode()).digest()):
        try:
            text = found[path].read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            continue
        digest = hashlib.sha256(text.encode()).digest()
        if digest not in seen and "\0" not in text:
            seen.add(digest)
            yield path, text


def read(roots: list[Path], vocabulary: int, most: int = MOST) -> Corpus:
    """The tokenizer is in the format of `tokenizers`; every byte is a token, so that no text is lost."""
    train, held_out, size = [], {}, 0
    for path, text in files(roots):
        if first_byte(path) < HELD_OUT:
            held_out[path] = text
            continue
        train.append(text)
        size += len(text)
        if size > most:
            break
    tokenizer = merged(train, vocabulary)
    ids = [np.array([*text.ids, END], np.int32) for text in tokenizer.encode_batch_fast(train)]
    return Corpus(tokenizer, np.concatenate(ids), held_out, len(train), size)


def merged(texts: list[str], vocabulary: int) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=["<end>"], initial_alphabet=letters, show_progress=False
    )
    step = max(1, sum(map(len, texts)) // FOR_MERGES)
    tokenizer.train_from_iterator(texts[::step], trainer)
    return tokenizer
