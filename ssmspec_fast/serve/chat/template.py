"""The chat template of a checkpoint's folder: nothing of it runs in this process."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...errors import BrokenFile
from ...models.checkpoint import TOKENIZER_LIMIT, read_json
from ...models.tokenizer import Bare, Tokenizer
from .rendering import Rendering

FILE, CONFIG = "chat_template.jinja", "tokenizer_config.json"
SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")
LIMIT = 1 << 20
"""Bytes of a template."""


class Template:
    """Turns the messages of a chat into the tokens of a prompt."""

    def __init__(self, text: str, special: dict[str, str], tokenizer: Tokenizer) -> None:
        self.rendering, self.rules = Rendering(text, special), Bare(tokenizer)

    def tokens(self, turns: Sequence[dict[str, str]], fits: Callable[[str], str] = str) -> list[int]:
        """`fits` refuses a text that is too long to be tokenized. Raises: Refused, also for messages that the template
        rejects; ParameterError."""
        return self.rules.encode(fits(self.rendering.text(turns)))


def template_of(folder: Path, tokenizer: Tokenizer | None) -> Template | None:
    """The template of a folder; None if it has none or no tokenizer. Raises: BrokenFile."""
    config: dict[str, Any] = read_json(folder / CONFIG, TOKENIZER_LIMIT) if (folder / CONFIG).is_file() else {}
    text = own(folder / FILE) if (folder / FILE).is_file() else chosen(folder / CONFIG, config.get("chat_template"))
    if tokenizer is None or text is None:
        return None
    return Template(text, special(folder / CONFIG, config), tokenizer)


def own(file: Path) -> str:
    """The text of a template's file. Raises: BrokenFile."""
    try:
        with file.open("rb") as stream:
            raw = stream.read(LIMIT + 1)
        if len(raw) > LIMIT:
            raise BrokenFile(f"{file} has more than {LIMIT:,} bytes, too many for a chat template; give a shorter one")
        return raw.decode()
    except UnicodeDecodeError as error:
        raise BrokenFile(f"{file} is not UTF-8 at byte {error.start}; save it as UTF-8") from error
    except OSError as error:
        raise BrokenFile(f"{file} cannot be read: {error.strerror}") from error


def chosen(file: Path, given: Any) -> str | None:
    """The template in a config: its text, or that with the name `default` in a list. Raises: BrokenFile."""
    if isinstance(given, list) and all(isinstance(one, dict) for one in given):
        given = next((one.get("template", 0) for one in given if one.get("name") == "default"), None)
    if given is not None and not isinstance(given, str):
        kind = type(given).__name__
        raise BrokenFile(
            f"chat_template in {file} is a {kind}; it must be a text, or a list of objects with `name` and `template`"
        )
    if given is not None and len(given) > LIMIT:
        raise BrokenFile(f"chat_template in {file} has {len(given):,} characters, more than {LIMIT:,}; give a shorter one")
    return given


def special(file: Path, config: dict[str, Any]) -> dict[str, str]:
    """The texts of the special tokens. Raises: BrokenFile."""
    found = dict[str, str]()
    for name in SPECIAL:
        value = config.get(name)
        text = value.get("content", 0) if isinstance(value, dict) else value
        if text is not None and not isinstance(text, str):
            raise BrokenFile(f"{name} in {file} is {str(value)[:60]}; it must be a text, or an object with `content`")
        if text is not None:
            found[name] = text
    return found
