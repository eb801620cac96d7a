"""The table `[tool.ssmspec]` of pyproject.toml: what `conform run` and pytest take where the command line says nothing.

[tool.ssmspec]
adapter = "my_kernels:adapter"
tier = "standard"
report = "conformance-report"
"""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from typer.core import TyperCommand

from ssmspec_ref.errors import OptionError
from ssmspec_ref.options.words import nearest

FILE, TABLE = "pyproject.toml", "[tool.ssmspec]"
Tier = Literal["smoke", "standard", "deep"]
Explain = Literal["none", "quick", "full"]
Names = str | list[str]
Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class Settings(BaseModel):
    """The keys. `known` and `report` are paths, relative to the file. `required` is read by pytest alone; `program`, `seed`,
    `jobs`, `timeout` and `memory` by `conform run` alone."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    adapter: Names | None = None
    program: Names | None = None
    tier: Tier | None = None
    subject: str | None = None
    operation: str | None = None
    device: str | None = None
    known: str | None = None
    explain: Explain | None = None
    report: str | None = None
    seed: Annotated[int, Field(ge=0)] | None = None
    jobs: Count | None = None
    timeout: Seconds | None = None
    memory: Seconds | None = None
    required: bool | None = None


PYTEST = ("adapter", "tier", "subject", "operation", "device", "known", "explain", "report", "required")
RUN = tuple(name for name in Settings.model_fields if name != "required")
SEVERAL, PATHS = ("adapter", "program"), ("known", "report")


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings of the nearest pyproject.toml that has the table, in a folder or above it; {} if none has.

    Raises: OptionError for a file that cannot be read, an unknown key or a value of another type.
    """
    for path in (above / FILE for above in (folder, *folder.parents)):
        if path.is_file() and (table := _table(path)) is not None:
            given = _checked(path, table)
            return given | {name: _seen_from(folder, path.parent / given[name]) for name in PATHS if name in given}
    return {}


def _seen_from(folder: Path, path: Path) -> str:
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def _table(path: Path) -> Any:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("ssmspec")
    except (OSError, ValueError, AttributeError) as error:  # unreadable, not TOML, or `tool` is no table
        raise OptionError(f"{path} cannot be read for {TABLE}: {error}") from error


def _checked(path: Path, table: Any) -> dict[str, Any]:
    try:
        given = Settings.model_validate(table).model_dump(exclude_none=True)
    except ValidationError as error:
        raise OptionError(f"{path}, {TABLE}: {'; '.join(dict.fromkeys(map(_wrong, error.errors())))}") from error
    return given | {name: [given[name]] for name in SEVERAL if isinstance(given.get(name), str)}


class FromSettings(TyperCommand):
    """A command whose options have the settings of the working folder as their defaults."""

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        """Parse the command line. Raises: OptionError."""
        given = {name: value for name, value in read_settings(Path.cwd()).items() if name in RUN}
        return super().make_context(info_name, args, parent, **{"default_map": given} | extra)


def _wrong(error: Any) -> str:
    """What is wrong with one key."""
    if not error["loc"]:
        return "it must be a table"
    key = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        return f"{key} is not a key{nearest(key, Settings.model_fields)}; the keys are {', '.join(Settings.model_fields)}"
    needed = "a text or a list of texts" if key in SEVERAL else error["msg"].removeprefix("Input should be ")
    return f"{key} is {error['input']!r}; it must be {needed}"
