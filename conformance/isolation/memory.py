"""The default memory limit of a worker and the processes that it starts."""

import os
from contextlib import suppress
from pathlib import Path

from ssmspec_ref.options.memory import in_bytes

GROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
SHARE = 0.8
"""The fraction of the memory of the machine, or of the container."""


def taken() -> int:
    """Bytes of memory that this process holds; 0 where the system does not tell."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def allowed(gibibytes: float | None = None) -> int:
    """Bytes: the given amount, or a fraction of the available memory. Raises: OptionError for more than machines have."""
    if (given := in_bytes(gibibytes)) is not None:
        return given
    try:
        found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    except (AttributeError, ValueError, OSError):  # the system does not tell
        return 1 << 62
    for group in GROUPS:
        with suppress(OSError, ValueError):
            found.append(int(Path(group).read_text()))
    return int(SHARE * min(found))
