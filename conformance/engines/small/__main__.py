"""Write small random checkpoints: `python -m conformance.engines.small FOLDER [--family mamba2]`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from ssmspec_ref.options.words import one_of

from ...main import run_command
from .configs import CONFIGS
from .folders import pair


def main(
    folder: Annotated[Path, typer.Argument(help="The folder to write into.")],
    family: Annotated[list[str] | None, typer.Option(help="Only this family. Repeat for several.")] = None,
    seed: Annotated[int, typer.Option(help="Of the weights.")] = 0,
) -> None:
    for name in [one_of("--family", name, CONFIGS) for name in family or CONFIGS]:
        for path in pair(name, folder, seed):
            print(path)


if __name__ == "__main__":
    sys.exit(run_command(main))
