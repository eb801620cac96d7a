"""The prompts of `ssmspec generate`: texts, or token ids for a checkpoint without a tokenizer."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ssmspec_ref.errors import ParameterError

if TYPE_CHECKING:
    from ..generator import Prompt

NEEDED = 'give {"prompt": "text"}, {"prompt": [1, 2, 3]} with token ids, or plain text'

LIMIT = 1 << 28
"""Bytes of a file of prompts."""


def prompts_of(given: list[str], file: Path | None) -> list["Prompt"]:
    """The prompts of the options and of a file. Raises: ParameterError for a file that cannot be read, or a line of JSON
    without a prompt."""
    if file is None:
        return list(given)
    try:
        with file.open("rb") as stream:
            raw = stream.read(LIMIT + 1)
        if len(raw) > LIMIT:
            raise ParameterError(f"{file} has more than {LIMIT:,} bytes; give fewer prompts at once")
        lines = raw.decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(f"{file} cannot be read as prompts: {error}") from error
    return [*given, *(_prompt(line, file, n) for n, line in enumerate(lines, 1) if line)]


def check_prompts(prompts: Sequence["Prompt"]) -> None:
    """Raises: ParameterError if there is none, or one is empty or not valid text."""
    if not prompts or not all(prompts):
        raise ParameterError("a prompt is missing or empty; give --prompt TEXT or --prompts FILE")
    for prompt in prompts:
        if isinstance(prompt, str) and prompt.encode(errors="replace").decode() != prompt:
            raise ParameterError(f"a prompt is not valid UTF-8: {prompt[:40]!r}; give text")


def shown(prompt: "Prompt") -> str:
    """The prompt as it is printed."""
    return prompt if isinstance(prompt, str) else " ".join(map(str, prompt))


def _prompt(line: str, file: Path, number: int) -> "Prompt":
    if not line.startswith("{"):
        return line
    with suppress(ValueError, RecursionError):
        found = json.loads(line).get("prompt")
        if isinstance(found, str) or (isinstance(found, list) and all(type(token) is int for token in found)):
            return found
    raise ParameterError(f"{file}, line {number}: JSON without a `prompt` that is text or a list of token ids; {NEEDED}")
