"""The operations that the suite tests."""

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
from .specification import Specification
from .speculate import SPECIFICATIONS as SPECULATE
from .tokens import choices, drafts, row_settings, sampled_runs


def _recurrences() -> tuple[Specification, ...]:
    plain_first = sorted(RECURRENCES.values(), key=lambda kind: kind.alone is not None)
    alone = (specification for kind in plain_first for specification in kind.specifications)
    return (*alone, *packed.specifications(), *windows.specifications())


TOKENS = (*choices.SPECIFICATIONS, row_settings.SPECIFICATION, *drafts.SPECIFICATIONS)
PURE: Rows[Specification] = Rows(lambda: (*CONV, *_recurrences(), *ATTENTION, *ACCEPTANCE, *PROCESSORS, *TOKENS))
SPECIFICATIONS: Rows[Specification] = Rows(
    lambda: (*PURE, *LAYERS, *SPECULATE, *states.SPECIFICATIONS, *GENERATE, sampled_runs.SPECIFICATION)
)


def find(identity: str) -> tuple[Specification, Case]:
    """The specification and the case of an id.

    Raises: UnknownCase.
    """
    operation = identity.partition("/")[0]
    of_it = [specification for specification in SPECIFICATIONS if identity.startswith(specification.operation + "/")]
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
