"""Tokenizers: one token per byte, and a byte-pair encoding of 512 merges; both in the format of `tokenizers`."""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END_TEXT = "Ā"
"""How byte-level tokenizers write byte 0, which ends a text."""


def bytes_only() -> Tokenizer:
    """Token i is byte i."""
    return _byte_level(models.BPE(vocab={letter: i for i, letter in enumerate(_letters())}, merges=[]))


def merged(texts: Iterable[str], merges: int = 512) -> Tokenizer:
    """256 bytes and the most frequent merges; token 0 ends a text, as in `bytes_only`."""
    tokenizer = _byte_level(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    letters = _letters()
    trainer = trainers.BpeTrainer(
        vocab_size=256 + merges, special_tokens=[END_TEXT], initial_alphabet=letters, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes the tokenizer into a checkpoint's folder, in the format that transformers loads.

    It has no special token: a special token of this name would be found in texts, where the letter Ā is two bytes. The token
    that ends a text is in the model's config.
    """
    from transformers import PreTrainedTokenizerFast

    whole = json.loads(tokenizer.to_str()) | {"added_tokens": []}
    plain = Tokenizer.from_str(json.dumps(whole))
    PreTrainedTokenizerFast(tokenizer_object=plain).save_pretrained(folder)  # type: ignore[no-untyped-call]


def _byte_level(model: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _letters() -> list[str]:
    """The printable letter of each byte: itself if printable, otherwise the next free code point from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    free = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(free)) for byte in range(256)]
