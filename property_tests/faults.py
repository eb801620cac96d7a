"""The planted faults of decoding sequences, and how quickly the machine finds each: `python -m property_tests.faults`."""

import sys
import time
from dataclasses import dataclass
from typing import Annotated

import typer

from conformance.faults.decoding import sequences
from conformance.main import run_command

from .drawing.profiles import PROFILES
from .sessions.hunt import Failure, hunt
from .sessions.machine import machine

MOST_EXAMPLES, MOST_STEPS = 600, 6
NAMED = "conformance.faults.decoding.sequences:adapter"


@dataclass(frozen=True)
class Row:
    kind: str
    fault: str
    failure: Failure | None
    seconds: float

    @property
    def found(self) -> bool:
        return self.failure is not None and self.failure.examples <= MOST_EXAMPLES and self.failure.steps <= MOST_STEPS

    def line(self) -> str:
        if self.failure is None:
            return f"| {self.kind} | {self.fault} | not found | | |"
        way = " → ".join(name for name, _, _ in self.failure.session.lines)
        return f"| {self.kind} | {self.fault} | {self.failure.examples} | {self.failure.steps} | {way} |"


def names() -> list[tuple[str, str]]:
    """Every fault with its class."""
    return [(kind, fault.__name__) for kind, faults in sequences.CLASSES.items() for fault in faults]


def look_for(kind: str, fault: str) -> Row:
    """Runs the `ci` profile's machine on one fault."""
    adapter = sequences.adapter()
    group = tuple(d for d in adapter.decodings if d.name == fault)
    begun = time.perf_counter()
    profile = PROFILES["ci"]
    found = hunt(machine(adapter, NAMED, profile.sizes, [group]), profile.settings(max_examples=MOST_EXAMPLES))
    return Row(kind, fault, found, time.perf_counter() - begun)


def main(chosen: Annotated[list[str] | None, typer.Argument(help="Faults; without names all.")] = None) -> int:
    """Prints the table. Exits with 1 if a fault is not found, or needs too many examples or steps."""
    print("| class | fault | examples | steps | smallest run |\n|---|---|---:|---:|---|")
    rows = []
    for kind, fault in names():
        if not chosen or fault in chosen:
            rows.append(look_for(kind, fault))
            print(rows[-1].line(), flush=True)
            print(f"{rows[-1].seconds:.0f} s", file=sys.stderr)
    return 0 if all(row.found for row in rows) else 1


if __name__ == "__main__":
    sys.exit(run_command(main))
