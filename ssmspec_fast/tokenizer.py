"""Text to tokens and back, by a folder's tokenizer.json alone: nothing in the folder is executed."""

import json
from pathlib import Path
from typing import Any

from .errors import BrokenFile, TokenizerMismatch

FILE = "tokenizer.json"
LOST = "\ufffd"
"""What bytes become that are no whole character yet."""


class Tokenizer:
    """The tokenizer of a folder, through transformers.

    Raises: BrokenFile for a file that is missing or no tokenizer.
    """

    def __init__(self, folder: str | Path) -> None:
        from transformers import PreTrainedTokenizerFast

        file = Path(folder) / FILE
        if not file.parent.is_dir():
            raise BrokenFile(f"{folder} is no folder; give one with config.json, safetensors and {FILE}")
        if not file.is_file():
            raise BrokenFile(f"{file} is missing; give prompts as tokens, or a folder with a {FILE}")
        try:
            self.inner: Any = PreTrainedTokenizerFast(tokenizer_file=str(file))  # type: ignore[no-untyped-call]
        except Exception as error:  # the library raises no type of its own
            raise BrokenFile(f"{file} is no tokenizer: {error}; download it again") from error
        self.folder = Path(folder)

    def encode(self, text: str) -> list[int]:
        return list(self.inner.encode(text))

    def decode(self, tokens: list[int] | tuple[int, ...]) -> str:
        return self.inner.decode(list(tokens), clean_up_tokenization_spaces=False)

    def pieces(self) -> dict[str, int]:
        """Every token's piece of text."""
        return dict(self.inner.get_vocab())


class Bare:
    """A tokenizer that adds nothing at either end; without the layer above the file's own rules, which costs 50 us a call."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.rules = tokenizer.inner.backend_tokenizer

    def encode(self, text: str) -> list[int]:
        return list(self.rules.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: list[int]) -> str:
        return str(self.rules.decode(tokens, skip_special_tokens=False))


class Stream:
    """Text token by token: what is no whole character yet waits for the next one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.shown = tokenizer, 0
        self.tokens: list[int] = []

    def add(self, *tokens: int) -> str:
        """What can be shown now."""
        self.tokens += tokens
        text = self.tokenizer.decode(self.tokens)
        return "" if text.endswith(LOST) else self._from(text)

    def rest(self) -> str:
        """What still waits."""
        return self._from(self.tokenizer.decode(self.tokens))

    def _from(self, text: str) -> str:
        new, self.shown = text[self.shown :], len(text)
        return new


def same(one: Tokenizer, other: Tokenizer) -> bool:
    """Whether two tokenizers cut every text alike: the same pieces with the same numbers, made by the same rules."""
    if one.pieces() != other.pieces():
        return False
    return _rules(one) == _rules(other)


def _rules(tokenizer: Tokenizer) -> Any:
    whole = json.loads((tokenizer.folder / FILE).read_text(encoding="utf-8"))
    return [whole.get(part) for part in ("normalizer", "pre_tokenizer", "model")]


def check_size(tokenizer: Tokenizer, vocabulary: int) -> None:
    """Raises: TokenizerMismatch for a tokenizer with tokens that its model does not have."""
    most = max(tokenizer.pieces().values(), default=-1)
    if most >= vocabulary:
        raise TokenizerMismatch(
            f"the tokenizer of {tokenizer.folder} has token {most}, but the model's vocabulary is 0 to {vocabulary - 1}; "
            "they are of two models"
        )
