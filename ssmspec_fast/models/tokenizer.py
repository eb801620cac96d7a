"""Text to tokens and back, by a folder's tokenizer.json only: nothing in the folder is executed."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ssmspec_ref.errors import ParameterError

from ..errors import BrokenFile, TokenizerMismatch
from . import growth
from .checkpoint import TOKENIZER_LIMIT, read_json

FILE = "tokenizer.json"
LOST = "\ufffd"
"""The replacement for bytes that do not form a whole character yet."""
WINDOW = 16
"""Tokens that a stream decodes again with each new one: the context of the new text."""


class Tokenizer:
    """The tokenizer of a folder. A truncation or a padding that the file stores never applies: they belong to batches of a
    training, and would change or lengthen a prompt.

    Raises: BrokenFile for a file that is missing or not a tokenizer, or whose rules may lengthen a text without bound.
    """

    def __init__(self, folder: str | Path) -> None:
        import tokenizers

        file = Path(folder) / FILE
        if not file.parent.is_dir():
            raise BrokenFile(f"{folder} is not a folder; give one with config.json, safetensors and {FILE}")
        if not file.is_file():
            raise BrokenFile(
                f"{file} is missing, and a prompt or a stop is text; copy the model's {FILE} there, or give token ids: "
                '--prompts FILE with lines like {"prompt": [1, 2, 3]}'
            )
        self.folder, self.rules = Path(folder), read_json(file, TOKENIZER_LIMIT)
        grows = growth.wrong(self.rules)
        if grows:
            raise BrokenFile(f"{file} cannot be used: {grows}; give the tokenizer of the model's publisher")
        with named(f"{file} is not a tokenizer"):
            self.inner: Any = tokenizers.Tokenizer.from_file(str(file))
            self.inner.no_truncation()
            self.inner.no_padding()

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The tokens of a text, with those that the file adds at the ends if `special`. Other threads run meanwhile: of the
        library's calls only those for batches release Python's lock. Raises: ParameterError for invalid text, BrokenFile if
        the tokenizer's rules do not terminate."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ParameterError(f"a prompt is not valid UTF-8 at character {error.start}; give text") from error
        with named(f"{self.folder / FILE} cannot encode a text of {len(text)} characters"):
            (found,) = self.inner.encode_batch_fast([text], add_special_tokens=special)
            return list(found.ids)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self.inner.decode(list(tokens), skip_special_tokens=False))

    def pieces(self) -> dict[str, int]:
        """The text piece of every token."""
        return dict(self.inner.get_vocab())


@contextmanager
def named(what: str) -> Iterator[None]:
    """Turns any error of the library, a panic of its Rust code included, into BrokenFile."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:  # the library has no error type, and a panic is not an Exception
        raise BrokenFile(f"{what}: {str(error)[:200]}; download it again") from error


class Bare:
    """A tokenizer that adds nothing at either end."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, special=False)

    def decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(tokens)


class Stream:
    """Text token by token: an incomplete character waits for the next token. `shown` counts the characters.

    Only the last tokens are decoded with a new one, at most 2 WINDOW: earlier ones are dropped as soon as the text of the
    last WINDOW alone is how the whole text ends, from a whole character on.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.shown = tokenizer, 0
        self.tokens: list[int] = []
        self.known = 0

    def add(self, *tokens: int) -> str:
        """Adds tokens and returns the text that can be shown now."""
        self.tokens += tokens
        text = self.tokenizer.decode(self.tokens)
        if text.endswith(LOST):
            return ""
        new = self._from(text)
        if len(self.tokens) > 2 * WINDOW:
            last = self.tokenizer.decode(self.tokens[-WINDOW:])
            if text.endswith(last) and not last.startswith(LOST):
                self.tokens, self.known = self.tokens[-WINDOW:], len(last)
        return new

    def rest(self) -> str:
        """The text that still waits."""
        return self._from(self.tokenizer.decode(self.tokens))

    def _from(self, text: str) -> str:
        new, self.known = text[self.known :], len(text)
        self.shown += len(new)
        return new


def encoded(folder: str | Path, prompts: Sequence[str | Sequence[int]], text_too: bool = False) -> list[list[int]]:
    """The tokens of prompts, each text or tokens. The tokenizer is read only if one is text, or other text will follow.

    Raises: as `Tokenizer`.
    """
    texts = text_too or any(isinstance(prompt, str) for prompt in prompts)
    rules = Tokenizer(folder) if texts else None
    return [rules.encode(prompt) if rules and isinstance(prompt, str) else [*map(int, prompt)] for prompt in prompts]


def same(one: Tokenizer, other: Tokenizer) -> bool:
    """Whether two tokenizers split every text alike: the same pieces with the same numbers, made by the same rules."""
    if one.pieces() != other.pieces():
        return False
    return all(one.rules.get(part) == other.rules.get(part) for part in ("normalizer", "pre_tokenizer", "model"))


def check_size(tokenizer: Tokenizer, vocabulary: int) -> None:
    """Raises: TokenizerMismatch for a tokenizer with tokens that its model does not have."""
    most = max(tokenizer.pieces().values(), default=-1)
    if most >= vocabulary:
        raise TokenizerMismatch(
            f"the tokenizer of {tokenizer.folder} has token {most}, but the model's vocabulary is 0 to {vocabulary - 1}; "
            "they are from different models"
        )
