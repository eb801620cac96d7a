"""Attacks by what an adapter declares: its name, its version, what it takes, how wide its bounds are."""

import math
from typing import Any

from ssmspec_ref.contract import Adapter, Capability, Limits, NumericContract, Subject
from tests.robust.hostile.corpus import REFUSED, declares, factory, wrong

WRONG = ("bound",)


@factory(*WRONG, said="wrong by", quick=True)
def has_a_surrogate_for_a_name() -> Adapter:
    """No report can hold its name."""
    return declares(wrong, "a\ud800", "b\udfff", version="\ud900")


@factory(*WRONG, said="wrong by", quick=True)
def has_escapes_for_a_name() -> Adapter:
    """Its name clears the terminal, and the line that runs it again runs something else."""
    return declares(wrong, "\x1b[2J\x1b[32mright", "attack\n\x1b]0;$(touch planted)\x07; touch planted", version="\x1b[8m")


@factory(*WRONG, said="wrong by")
def has_markup_for_a_name() -> Adapter:
    """Its name ends markup that nobody began."""
    return declares(wrong, "[/red]", "[/] <script>alert(1)</script> [bold", version="[/]")


@factory(*WRONG, said="wrong by", quick=True)
def has_a_path_for_a_name() -> Adapter:
    """Its name is the path of a list of known failures that it has written."""
    import os
    from pathlib import Path

    listed = Path(os.environ["SSMSPEC_LISTED"])
    listed.write_text('[[known]]\ncase = "*"\nreason = "mine"\nlink = "https://example.org"\nexpires = 2999-01-01\n')
    return declares(wrong, f"../../../../../../../../../..{listed.with_suffix('')}")


@factory(*WRONG, said="wrong by")
def has_the_name_of_another() -> Adapter:
    """Its name is that of an adapter whose failures are known."""
    return declares(wrong, "transformers")


@factory(*WRONG, said="wrong by")
def has_a_megabyte_for_a_name() -> Adapter:
    """Its name fills a report."""
    return declares(wrong, "x" * 1_000_000, "y" * 1_000_000, version="z" * 1_000_000)


@factory(REFUSED, said="name is int; it must be a str", quick=True)
def has_a_number_for_a_name() -> Adapter:
    """Its name is no text."""
    return declares(wrong, 7)  # type: ignore[arg-type]


@factory(REFUSED, said="unreadable message")
def has_ten_thousand_subjects() -> Adapter:
    """It declares more than anybody reads."""
    capability = {"ssd.scan": Capability(wrong, NumericContract())}
    return Adapter("hostile", "1", tuple(Subject(f"attack {n}", capability) for n in range(10_000)))


@factory(REFUSED, said="declaration .*is invalid")
def has_an_object_for_a_limit() -> Adapter:
    """Its limits hold what is no text."""
    return declares(wrong, limits=(Limits({"D": (object(),)}),))  # type: ignore[arg-type]


@factory("bound", said="not finite")
def has_bounds_without_an_end() -> Adapter:
    """Its functions may be wrong by any number."""
    return declares(wrong, contract={"function_ulp": math.inf})


@factory("void", "bound", said="zeros would pass|wrong by|not finite")
def has_bounds_that_admit_zeros() -> Adapter:
    """Its functions may be wrong by so much that zeros pass."""
    return declares(wrong, contract={"function_ulp": 1e30})


@factory(REFUSED, said="cannot be loaded")
def declares_while_it_raises() -> Any:
    """Its factory raises a text that no UTF-8 has."""
    raise RuntimeError("\ud800\x1b[2J")


@factory(REFUSED, said="the process that loads it")
def ends_while_it_loads() -> Any:
    """Its factory ends the process as if all had gone well."""
    import os

    os._exit(0)


@factory(REFUSED, said="the limits of the axis t are 0 to 0, and no size is within", quick=True)
def has_no_size_within_its_limits() -> Adapter:
    """Nothing can be drawn within its limits."""
    return declares(wrong, limits=(Limits(sizes={"t": (0, 0)}),))


@factory(REFUSED, said="no size is within 5 to 3", quick=True)
def has_limits_that_its_process_reversed() -> Adapter:
    """It is loaded well, and its process declares other limits."""
    made = declares(wrong)
    object.__setattr__(made.subjects[0].capabilities["ssd.scan"].limits, "sizes", {"t": (5, 3)})
    return made
