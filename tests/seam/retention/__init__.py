"""A recurrence that no package knows, registered for a while: what a newcomer writes, and where it is entered."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from conformance.suite.recurrences import RECURRENCES as JUDGED
from property_tests.recurrences import RECURRENCES as FUZZED
from ssmspec_fast.adapters.given import GIVEN
from ssmspec_fast.recurrences import RECURRENCES as COMPUTED
from ssmspec_ref import contract
from ssmspec_ref.error_bounds.recurrences import BOUNDS
from ssmspec_ref.layers.recurrences import RECURRENCES

from . import bounds, engine, fuzz, suite
from .oracle import layer

ROWS = (
    (contract.RECURRENCES, contract.Recurrence("retention")),
    (RECURRENCES, layer.KIND),
    (BOUNDS, bounds.KIND),
    (JUDGED, suite.RECURRENCE),
    (COMPUTED, engine.KIND),
    (GIVEN, engine.GIVEN),
    (FUZZED, fuzz.KIND),
)


@contextmanager
def registered() -> Iterator[None]:
    """Retention in every registry."""
    with ExitStack() as stack:
        for registry, record in ROWS:
            stack.enter_context(registry.registered(record))  # type: ignore[attr-defined]
        yield
