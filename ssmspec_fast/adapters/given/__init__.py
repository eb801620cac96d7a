"""Converts the suite's values to the engine's: for each kind of recurrence, its records read by their fields."""

from ssmspec_ref.registry import Registry

from . import delta, mamba3, selective, shortconv, ssd

GIVEN = Registry(
    "recurrence of the engine's adapters",
    ssd.KIND,
    selective.KIND,
    delta.KIND,
    shortconv.KIND,
    mamba3.KIND,
)
