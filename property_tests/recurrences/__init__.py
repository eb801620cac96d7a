"""The recurrences that are fuzzed, each with its layers and with what its laws need."""

from ssmspec_ref.registry import Registry

from . import delta, mamba3, selective, shortconv, ssd

RECURRENCES = Registry(
    "fuzzed recurrence",
    ssd.KIND,
    selective.KIND,
    delta.KIND,
    shortconv.KIND,
    mamba3.KIND,
)
