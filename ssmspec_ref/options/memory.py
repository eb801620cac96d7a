"""A limit of memory as a command takes it: in GiB."""

from ..errors import OptionError

GIB = 1 << 30
MOST = 100_000.0
"""GiB that no machine has: a larger number is one of bytes."""


def in_bytes(gibibytes: float | None) -> int | None:
    """The bytes of `--memory`, which is in GiB; None stays None. Raises: OptionError for a number of bytes."""
    if gibibytes is None:
        return None
    if gibibytes > MOST:
        meant = f"give {gibibytes / GIB:.3g}"
        raise OptionError(f"--memory is {gibibytes:.10g} GiB, more than any machine has; it is in GiB, not in bytes: {meant}")
    return int(gibibytes * GIB)
