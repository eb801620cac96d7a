"""Tokenizers whose file stores what is meant for batches: a truncation, a padding."""

import json
from pathlib import Path
from typing import Any

from ssmspec_fast.cli.shipped import SHIPPED

MODEL = "bpe-drafter"
TRUNCATED = {"direction": "Right", "max_length": 6, "strategy": "LongestFirst", "stride": 0}


def padded(length: int, token: str = "[PAD]") -> dict[str, Any]:
    fixed = {"strategy": {"Fixed": length}, "direction": "Right", "pad_to_multiple_of": None}
    return fixed | {"pad_id": 0, "pad_type_id": 0, "pad_token": token}


STORED: dict[str, dict[str, Any]] = {
    "a truncation": {"truncation": TRUNCATED},
    "a padding": {"padding": padded(64)},
    "a padding whose token is a letter of the text": {"padding": padded(64, "e")},
    "both": {"truncation": TRUNCATED, "padding": padded(64)},
}


def store(folder: Path, **fields: Any) -> Path:
    """Writes into a folder the file of a tokenizer that ships, with these fields."""
    folder.mkdir(exist_ok=True)
    whole = json.loads((SHIPPED / MODEL / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(whole | fields))
    return folder
