"""The chat template of a checkpoint's folder, rendered in jinja2's sandbox."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from ..models.checkpoint import TOKENIZER_LIMIT, read_json
from ..models.tokenizer import Bare, Tokenizer
from .refusal import Refused

FILE, CONFIG = "chat_template.jinja", "tokenizer_config.json"
SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


class Template:
    """Turns the messages of a chat into the tokens of a prompt."""

    def __init__(self, text: str, special: dict[str, Any], tokenizer: Tokenizer) -> None:
        self.text, self.special, self.rules = text, special, Bare(tokenizer)

    def tokens(self, turns: Sequence[dict[str, str]]) -> list[int]:
        """Raises: Refused for messages that the template rejects."""
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            made: Any = render_jinja_template(
                [list(turns)], chat_template=self.text, add_generation_prompt=True, **self.special
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise Refused(400, f"the chat template does not take these messages: {error}", "messages") from error
        return self.rules.encode(made[0][0])


def template_of(folder: Path, tokenizer: Tokenizer | None) -> Template | None:
    """The template of a folder; None if it has none or no tokenizer. Raises: BrokenFile."""
    config: dict[str, Any] = read_json(folder / CONFIG, TOKENIZER_LIMIT) if (folder / CONFIG).is_file() else {}
    given: Any = config.get("chat_template")
    if isinstance(given, list):
        given = next((one["template"] for one in given if one.get("name") == "default"), None)
    if (folder / FILE).is_file():
        given = (folder / FILE).read_text(encoding="utf-8")
    if tokenizer is None or not isinstance(given, str):
        return None
    found = {name: config.get(name) for name in SPECIAL}
    return Template(
        given, {n: v["content"] if isinstance(v, dict) else v for n, v in found.items() if v is not None}, tokenizer
    )
