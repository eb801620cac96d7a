"""The operations that the suite tests."""

from collections.abc import Iterator
from itertools import chain

from ssmspec_ref.contract import OPERATIONS
from ssmspec_ref.options.words import nearest
from ssmspec_ref.registry import Rows

from ..cases import Case, split
from ..errors import UnknownCase
from .acceptance import SPECIFICATIONS as ACCEPTANCE
from .attention import SPECIFICATIONS as ATTENTION
from .conv import SPECIFICATIONS as CONV
from .generate import SPECIFICATIONS as GENERATE
from .layers import SPECIFICATIONS as LAYERS
from .life import states
from .processors import SPECIFICATIONS as PROCESSORS
from .recurrences import RECURRENCES, packed, windows
from .recurrences.recurrence import Recurrence
from .specification import Specification
from .speculate import SPECIFICATIONS as SPECULATE
from .tokens import choices, drafts, row_settings, sampled_runs

TOKENS = (*choices.SPECIFICATIONS, row_settings.SPECIFICATION, *drafts.SPECIFICATIONS)
WITHOUT_STATE = (*ATTENTION, *ACCEPTANCE, *PROCESSORS, *TOKENS)
ENGINES = (*GENERATE, sampled_runs.SPECIFICATION)
ON_LAYERS: dict[str, Rows[Specification]] = {"layer": LAYERS, "speculate": SPECULATE, "life": states.SPECIFICATIONS}
"""The operations on kinds of layers, by the group in their names, before the dot."""


def _of_recurrences(*kinds: Recurrence) -> Iterator[Specification]:
    plain_first = sorted(kinds, key=lambda kind: kind.alone is not None)
    yield from (specification for kind in plain_first for specification in kind.specifications)
    for module in (packed, windows):
        yield from (specification for kind in kinds for specification in module.specifications(kind))


PURE: Rows[Specification] = Rows(lambda: (*CONV, *_of_recurrences(*RECURRENCES.values()), *WITHOUT_STATE))
SPECIFICATIONS: Rows[Specification] = Rows(lambda: (*PURE, *chain.from_iterable(ON_LAYERS.values()), *ENGINES))


def of_operation(operation: str) -> list[Specification]:
    """The specifications of an operation, one for each kind of layer that it has; no others are made."""
    group = operation.partition(".")[0]
    known = _of_recurrences(RECURRENCES[group]) if group in RECURRENCES else (*CONV, *WITHOUT_STATE, *ENGINES)
    some = ON_LAYERS.get(group, known)
    return [specification for specification in some if specification.operation == operation]


def find(identity: str) -> tuple[Specification, Case]:
    """The specification and the case of an id.

    Raises: UnknownCase.
    """
    operation, slash, _ = identity.partition("/")
    of_it = of_operation(operation) if slash else []
    if not of_it:
        near = "" if operation in OPERATIONS else nearest(operation, OPERATIONS)
        raise UnknownCase(
            f"{identity!r} is not a case{near}; a case reads operation/sizes/options/family/seed, see `ssmspec conform list`"
        )
    _, _, options, _, _ = split(identity)
    for specification in of_it:
        if specification.fixed.items() <= options.items():
            return specification, specification.parse(identity)
    ((name, _),) = of_it[0].fixed.items()
    kinds = [specification.fixed[name] for specification in of_it]
    given = f"has no {name}={options[name]}{nearest(options[name], kinds)}" if name in options else f"needs {name}=.."
    raise UnknownCase(f"{identity!r}: {operation} {given}; its kinds are {', '.join(f'{name}={kind}' for kind in kinds)}")
