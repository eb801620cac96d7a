"""The operations that the suite judges."""

from ..cases import Case
from ..errors import UnknownCase
from . import conv, delta, layers, selective, ssd
from .specification import Specification

SPECIFICATIONS: tuple[Specification, ...] = (
    *conv.SPECIFICATIONS,
    *selective.SPECIFICATIONS,
    *ssd.SPECIFICATIONS,
    *delta.SPECIFICATIONS,
    *layers.SPECIFICATIONS,
)


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
