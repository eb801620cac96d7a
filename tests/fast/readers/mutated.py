"""The parsers written in Rust (safetensors, tokenizers) over mutated files, in a process of their own: one that dies, hangs
or takes too much memory is told by the seed that did it, the last one printed.

    python tests/fast/readers/mutated.py FOLDER SEED COUNT
"""

import random
import resource
import sys
from pathlib import Path

from ssmspec_fast.errors import TokenizerMismatch
from ssmspec_fast.models.checkpoint import headers, open_checkpoint
from ssmspec_fast.models.tokenizer import FILE, Tokenizer
from ssmspec_ref.errors import SpecError

MEMORY = 6 * 2**30
"""Bytes of address space that a reader may take beside what it has."""
TEXT = "def f(x):\n    return x * 2  # \u00e9 \u4e2d \U0001f600\n"
WORDS = (
    b"[",
    b"]",
    b"{",
    b"}",
    b'"',
    b"0",
    b"-1",
    b"99999999999999999999",
    b"null",
    b"(a*)*b",
    b"(?:",
    b"\\",
    b"\xff",
    b"\x00",
)


def mutated(whole: bytes, rng: random.Random, head: int) -> bytes:
    """Some bytes of the first `head` flipped, cut, repeated, or replaced by words that parsers trip over."""
    held = bytearray(whole)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(max(1, min(head, len(held))))
        match rng.randrange(5):
            case 0:
                held[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                held[at : at + rng.randint(1, 40)] = b""
            case 2:
                held[at:at] = held[at : at + rng.randint(1, 40)] * rng.randint(1, 50)
            case 3:
                held[at : at + rng.randint(0, 4)] = rng.choice(WORDS)
            case _:
                del held[rng.randrange(len(held)) if held else 0 :]
    return bytes(held)


def one(folder: Path, sources: list[tuple[Path, int]], seed: int) -> None:
    """A mutated file is read, or refused by a named error."""
    rng = random.Random(seed)
    source, head = rng.choice(sources)
    (folder / source.name).write_bytes(mutated(source.read_bytes(), rng, head))
    try:
        if source.name == FILE:
            tokenizer = Tokenizer(folder)
            tokenizer.decode(tokenizer.encode(TEXT))
        else:
            list(headers(folder / source.name))
            open_checkpoint(folder)
    except (SpecError, TokenizerMismatch):
        pass


def main() -> None:
    folder, begin, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    import transformers  # noqa: F401  (what is loaded is not counted)

    from ssmspec_fast.cli.shipped import SHIPPED

    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
    home = SHIPPED / "mamba2-drafter"
    (folder / "config.json").write_bytes((home / "config.json").read_bytes())
    sources = [(home / "model.safetensors", 2000), (home / FILE, 4000), (SHIPPED / "bpe-drafter" / FILE, 3000)]
    for seed in range(begin, begin + count):
        print(seed, flush=True)
        one(folder, sources, seed)


if __name__ == "__main__":
    main()
