"""One text has the same tokens whoever asks, in any order; a text written token by token is the text of all its tokens."""

import base64
import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models

from ssmspec_fast.cli.shipped import SHIPPED
from ssmspec_fast.errors import BrokenFile
from ssmspec_fast.generator import Generator
from ssmspec_fast.models import growth
from ssmspec_fast.models.tokenizer import WINDOW, Bare, Stream, Tokenizer, encoded

from .stored import MODEL, STORED, padded, store

TEXT = "def mean(values):\n    return sum(values) / len(values)\n"


def by_generate(folder: Path, tokenizer: Tokenizer) -> list[int]:
    return Generator(None, tokenizer).encode(TEXT)  # type: ignore[arg-type]


def by_text_drafter(folder: Path, tokenizer: Tokenizer) -> list[int]:
    return Bare(tokenizer).encode(TEXT)


def by_prompts(folder: Path, tokenizer: Tokenizer) -> list[int]:
    return encoded(folder, [TEXT])[0]


WAYS: tuple[Callable[[Path, Tokenizer], list[int]], ...] = (by_text_drafter, by_generate, by_prompts)


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("order", [WAYS, WAYS[::-1], WAYS * 2])
def test_what_a_file_stores_for_batches_changes_no_prompt(stored: str, order: Any, tmp_path: Path) -> None:
    wanted = Tokenizer(SHIPPED / MODEL).encode(TEXT)
    folder = store(tmp_path / "model", **STORED[stored])
    tokenizer = Tokenizer(folder)
    assert len(wanted) > 6
    assert [way(folder, tokenizer) for way in order] == [wanted] * len(order)
    assert tokenizer.pieces() == Tokenizer(SHIPPED / MODEL).pieces()


@pytest.mark.parametrize("call", ["Bare(t).encode('x')", "t.encode('x')"])
def test_a_padding_of_ten_thousand_million_takes_no_memory(call: str, tmp_path: Path) -> None:
    folder = store(tmp_path / "model", padding=padded(10**10))
    code = (
        "import resource, sys; from pathlib import Path; from ssmspec_fast.models.tokenizer import Bare, Tokenizer\n"
        f"t = Tokenizer(Path(sys.argv[1])); resource.setrlimit(resource.RLIMIT_AS, (2**36, 2**36)); print({call})"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == str(Tokenizer(SHIPPED / MODEL).encode("x"))


def sentence_pieces() -> tokenizers.Tokenizer:
    """As Llama's: words begin with a mark, what is no piece is written byte by byte, the first space is dropped."""
    words = ["\u2581the", "\u2581", "a", "nd", "\u2581of", "."]
    pieces = [f"<0x{n:02X}>" for n in range(256)] + words
    made = tokenizers.Tokenizer(models.BPE({piece: n for n, piece in enumerate(pieces)}, [], byte_fallback=True))
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(steps)
    return made


def word_pieces() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.WordPiece({w: n for n, w in enumerate(["the", "##s", "##ing", ".", "play"])}))
    made.decoder = decoders.WordPiece("##", cleanup=True)
    return made


DRAWN: dict[str, tuple[Callable[[], tokenizers.Tokenizer | None], list[int]]] = {
    "whole characters in bytes": (lambda: None, []),
    "random bytes": (lambda: None, list(range(256))),
    "sentence pieces": (sentence_pieces, [ord("x"), *range(256, 262)]),
    "word pieces": (word_pieces, list(range(5))),
}


def loaded(name: str, folder: Path) -> Tokenizer:
    made = DRAWN[name][0]()
    if made is None:
        return Tokenizer(SHIPPED / "mamba2")
    made.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", DRAWN)
def test_a_text_token_by_token_is_the_text_of_all_its_tokens(name: str, seed: int, tmp_path: Path) -> None:
    tokenizer, rng = loaded(name, tmp_path), random.Random(seed)
    tokens = rng.choices(DRAWN[name][1], k=300) if DRAWN[name][1] else list(("aé→ b🙂\n" * 30).encode())
    stream, said = Stream(tokenizer), ""
    for token in tokens:
        said += stream.add(token)
        assert stream.shown == len(said)
    assert said + stream.rest() == tokenizer.decode(tokens)


@pytest.mark.parametrize("name", [name for name in DRAWN if name != "random bytes"])
def test_a_long_text_costs_the_same_for_each_token(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, seen, decode = loaded(name, tmp_path), list[int](), Tokenizer.decode
    tokens = list(("aé→ b🙂\n" * 100).encode()) if not DRAWN[name][1] else random.Random(0).choices(DRAWN[name][1], k=1500)
    monkeypatch.setattr(Tokenizer, "decode", lambda self, given: seen.append(len(given)) or decode(self, given))
    stream = Stream(tokenizer)
    for token in tokens:
        stream.add(token)
    assert max(seen) <= 4 * WINDOW
    assert sum(seen) < len(tokens) * 4 * WINDOW


def replaced(*pairs: tuple[str, str]) -> dict[str, Any]:
    rules = [{"type": "Replace", "pattern": {"String": before}, "content": after} for before, after in pairs]
    return {"type": "Sequence", "normalizers": rules, "decoders": rules}


def template(count: int, ids: int = 1) -> dict[str, Any]:
    pieces = [{"SpecialToken": {"id": "<s>", "type_id": 0}}] * count + [{"Sequence": {"id": "A", "type_id": 0}}]
    special = {"<s>": {"id": "<s>", "ids": [0] * ids, "tokens": ["<s>"] * ids}}
    return {"type": "TemplateProcessing", "single": pieces, "pair": [], "special_tokens": special}


def charsmap(replacement: str) -> dict[str, Any]:
    raw = (4).to_bytes(4, "little") + bytes(4) + replacement.encode() + b"\0"
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(raw).decode()}


REGEX = {"type": "Replace", "pattern": {"Regex": "."}, "content": "x" * 100}
GROWS: dict[str, dict[str, Any]] = {
    "forty doublings": {"normalizer": replaced(*[("x", "xx")] * 40)},
    "two of three thousand": {"normalizer": replaced(*[("x", "x" * 3000)] * 2)},
    "a decoder": {"decoder": replaced(*[("x", "xx")] * 40)},
    "a regular expression": {"normalizer": REGEX},
    "no pattern": {"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "x" * 100}},
    "rows in rows": {"normalizer": {"type": "Sequence", "normalizers": [replaced(*[("x", "x" * 8)] * 2)] * 2}},
    "a prefix of each piece": {"normalizer": {"type": "Prepend", "prepend": "x" * 4000}},
    "a table of characters": {"normalizer": charsmap("x" * 3000)},
    "a pre-tokenizer": {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [REGEX]}},
    "a million tokens at the ends": {"post_processor": template(1_000_000)},
    "a token of a million": {"post_processor": {"type": "Sequence", "processors": [template(1, 1_000_000)]}},
}


@pytest.mark.parametrize("name", GROWS)
def test_a_tokenizer_that_lengthens_a_text_without_bound_is_refused_by_name(name: str, tmp_path: Path) -> None:
    folder = store(tmp_path / "model", **GROWS[name])
    with pytest.raises(
        BrokenFile, match=r"cannot be used: its \w+ (may make a text more than 64 times|adds 1,000,00[01] tokens)"
    ):
        Tokenizer(folder)


@pytest.mark.parametrize(
    "rules",
    [
        {"normalizer": replaced((" ", "\u2581"), ("``", '"'))},
        {"normalizer": replaced(*[("xx", "x")] * 40)},
        {"normalizer": {"type": "Sequence", "normalizers": [charsmap("\ufdfa" * 18), replaced(("  ", " "))]}},
        {"normalizer": {"type": "Prepend", "prepend": "\u2581"}},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "no base64!"}},
        {"post_processor": template(2)},
        {"normalizer": None, "decoder": 5, "post_processor": [1]},
    ],
)
def test_rules_that_lengthen_a_text_little_are_taken(rules: dict[str, Any]) -> None:
    assert growth.wrong(rules) == ""


def test_the_tokenizers_that_ship_are_taken() -> None:
    shipped = sorted(SHIPPED.glob("*/tokenizer.json"))
    assert len(shipped) > 3
    assert {growth.wrong(json.loads(file.read_text())) for file in shipped} == {""}
