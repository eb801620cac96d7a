"""The adapters of a run, opened: each in a process of its own, or in this one."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from ssmspec_ref.contract import Adapter

from .errors import AdapterUnavailable
from .interpreter.device import placed
from .load import load
from .process import TIMEOUT, Process

DEFAULT = ("reference", "transformers")
"""What is judged where nothing is named, as far as it is installed."""


@dataclass(frozen=True)
class Opening:
    """Which adapters, where they compute, and whether each has a process of its own."""

    names: tuple[str, ...] = ()
    device: str = "cpu"
    isolated: bool = True
    timeout: float = TIMEOUT

    @contextmanager
    def open(self, missing: Callable[[AdapterUnavailable], None] | None = None) -> Iterator[dict[str, Adapter]]:
        """The adapters by the names that they were asked for; the processes end with the block.

        `missing` is told of an adapter of `DEFAULT` that is not installed. Raises: what `load` raises.
        """
        with ExitStack() as stack:
            found = {}
            for name in self.names or DEFAULT:
                try:
                    found[name] = self._one(name, stack)
                except AdapterUnavailable as error:
                    if self.names:
                        raise
                    if missing:
                        missing(error)
            yield found

    def _one(self, name: str, stack: ExitStack) -> Adapter:
        if not self.isolated:
            return load(name, stack.enter_context(placed(self.device)))
        process = Process(name, self.device, self.timeout)
        stack.callback(process.close)
        return process.adapter
