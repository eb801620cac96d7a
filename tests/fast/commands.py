"""The commands of the engine, called in this process."""

from typing import Any

from typer.testing import CliRunner, Result


def called(app: Any, *words: Any, **variables: str) -> Result:
    """On a wide terminal."""
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "400"} | variables)
