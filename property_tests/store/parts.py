"""The finished batches of a campaign, one a line."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel

from conformance.progress import lines
from ssmspec_ref.options.words import shown

FILE = "parts.jsonl"


class Failed(BaseModel):
    """The failure of a batch: its message, and after how many examples it was found; `name` is that of its program."""

    message: str
    at: int | None
    name: str = ""


class Part(BaseModel):
    """What a line must hold, so that it can be counted."""

    head: dict[str, Any]
    number: int
    examples: int
    seconds: float = 0.0
    reached: dict[str, int]
    decodings: dict[str, int]
    used: dict[str, float]
    worst: dict[str, Any] | None
    failure: Failed | None


def read(folder: Path) -> list[dict[str, Any]]:
    """The finished batches in a folder; none if it has no file of them. Raises: StoreError for a damaged line."""
    found: list[dict[str, Any]] = [clean(part) for part in lines.read(folder / FILE, Part)]
    return found


def clean(value: Any) -> Any:
    """The same, with every text safe to print: somebody else may have written the file."""
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, list):
        return [clean(one) for one in value]
    return {shown(name): clean(one) for name, one in value.items()} if isinstance(value, dict) else value
