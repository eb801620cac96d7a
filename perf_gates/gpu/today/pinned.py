"""The peers of today as they are written down in `wheels.toml`."""

import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def pinned() -> dict[str, list[dict[str, Any]]]:
    """Wheels, libraries, and what is not timed."""
    return tomllib.loads((HERE / "wheels.toml").read_text())
