"""The recurrences that the suite tests, each with its inputs, its bounds, its tables and its layers."""

from ssmspec_ref.registry import Derived, Registry

from . import delta, mamba3, selective, shortconv, ssd

RECURRENCES = Registry(
    "recurrence of the suite",
    ssd.RECURRENCE,
    selective.RECURRENCE,
    delta.RECURRENCE,
    shortconv.RECURRENCE,
    mamba3.RECURRENCE,
)
KINDS = Derived(lambda: {kind.name: kind for recurrence in RECURRENCES.values() for kind in recurrence.layers})
"""The kinds of layers."""
