"""Open the adapters of a run, each in its own worker process, or all in this process."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from ssmspec_ref.contract import Adapter

from ..interpreter.device import placed
from .calls import bench_of
from .load import load
from .process import TIMEOUT, Process


@dataclass(frozen=True)
class Opening:
    """Which adapters to open, on which device, and whether each gets its own process; `memory` in bytes, by default a
    fraction of the machine's (`isolation.memory`)."""

    names: tuple[str, ...]
    device: str = "cpu"
    isolated: bool = True
    timeout: float = TIMEOUT
    memory: int | None = None

    @contextmanager
    def open(self) -> Iterator[dict[str, Adapter]]:
        """The adapters by the names given; the processes end with the block. Raises: what `load` raises."""
        with ExitStack() as stack:
            yield {name: self._one(name, stack) for name in self.names}

    @staticmethod
    def versions(adapters: Iterable[Adapter]) -> dict[str, str]:
        """The packages that the processes of some adapters have imported."""
        runs = (capability for made in adapters for s in made.subjects for capability in s.capabilities.values())
        found = [getattr(bench_of(capability), "versions", {}) for capability in runs]
        return {package: version for versions in found for package, version in versions.items()}

    def _one(self, name: str, stack: ExitStack) -> Adapter:
        if not self.isolated:
            return load(name, stack.enter_context(placed(self.device)))
        process = Process(name, self.device, self.timeout, self.memory)
        stack.callback(process.close)
        return process.adapter
