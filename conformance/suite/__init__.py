"""The operations that the suite judges."""

from ..cases import Case
from ..errors import UnknownCase
from .acceptance import SPECIFICATIONS as ACCEPTANCE
from .attention import SPECIFICATIONS as ATTENTION
from .conv import SPECIFICATIONS as CONV
from .delta import SPECIFICATIONS as DELTA
from .generate import SPECIFICATIONS as GENERATE
from .layers import SPECIFICATIONS as LAYERS
from .packed import SPECIFICATIONS as PACKED
from .processors import SPECIFICATIONS as PROCESSORS
from .selective import SPECIFICATIONS as SELECTIVE
from .specification import Specification
from .speculate import SPECIFICATIONS as SPECULATE
from .ssd import SPECIFICATIONS as SSD
from .windows import SPECIFICATIONS as WINDOWS

PURE = (*CONV, *SELECTIVE, *SSD, *DELTA, *PACKED, *WINDOWS, *ATTENTION, *ACCEPTANCE, *PROCESSORS)
SPECIFICATIONS: tuple[Specification, ...] = (*PURE, *LAYERS, *SPECULATE, *GENERATE)


def find(identity: str) -> tuple[Specification, Case]:
    """The specification and the case of an id.

    Raises: UnknownCase.
    """
    refused = f"{identity!r} is no case; see `conform list`"
    for specification in SPECIFICATIONS:
        if identity.startswith(specification.operation + "/"):
            try:
                return specification, specification.parse(identity)
            except UnknownCase as error:
                refused = str(error)
    raise UnknownCase(refused)
