"""Write small random checkpoints: `python -m conformance.engines.small FOLDER [--family mamba2]`."""

import argparse
from pathlib import Path

from .configs import CONFIGS
from .folders import pair


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--family", choices=CONFIGS, action="append")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    for family in given.family or CONFIGS:
        for path in pair(family, given.folder, given.seed):
            print(path)


if __name__ == "__main__":
    main()
