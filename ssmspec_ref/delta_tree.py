"""Tree scan."""

from .records import Record
from .shapes import Ancestors, Array


def scan(S: Array, window: Record, ancestors: Ancestors, params: Record) -> Array:
    raise NotImplementedError
