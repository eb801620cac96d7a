"""The recurrences that are fuzzed, each with its layers and with what its laws need."""

from ssmspec_ref.registry import Registry

from . import delta, selective, shortconv, ssd

RECURRENCES = Registry(
    "fuzzed recurrence",
    ssd.KIND,
    selective.KIND,
    delta.KIND,
    shortconv.KIND,
)
