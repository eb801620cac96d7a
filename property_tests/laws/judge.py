"""Every law on every implementation of an adapter that it applies to: `ssmspec fuzz laws --adapter NAME`."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ssmspec_ref.contract import Adapter

from .decoder_laws import DECODER_LAWS
from .recurrence_laws import LAWS
from .relations import Broken, given_of


class Row(NamedTuple):
    """A law, what it was tested on, and the error: "" if it holds."""

    law: str
    of: str
    wrong: str


def judged(adapter: Adapter, seed: int = 0) -> Iterator[Row]:
    """Laws of decoders on every decoding, laws of recurrences on every fp32 subject, which promises equal bits row by row."""
    for decoder_law in DECODER_LAWS:
        for case in decoder_law.over(adapter, seed):
            yield Row(decoder_law.name, case.decoding.name, wrong(decoder_law.holds, case))
    for law in LAWS:
        for subject in adapter.subjects:
            for kind in law.kinds:
                if law.takes(kind, subject) and subject.capabilities[f"{kind}.scan"].contract.io in ("fp32", "fp64"):
                    given = given_of(kind, subject, ("gentle", "normal")[seed % 2], seed)
                    yield Row(law.name, f"{kind} of {subject.name}", wrong(law.holds, given))


def wrong(holds: Callable[[Any], None], given: Any) -> str:
    """The message of a broken law, or of an exception in the implementation."""
    try:
        holds(given)
    except Broken as broken:
        return str(broken)
    except Exception as error:  # an implementation that cannot do what its adapter declares breaks the law
        return f"{type(error).__name__}: {error}"
    return ""
