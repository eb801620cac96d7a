"""How many examples are drawn, and of which sizes: for every change, on a GPU, and for hours.

ci         derandomised, no database: the same examples in every run; failures are reduced by `reduce` only
gpu        larger windows, longer sequences, compiled kernels
campaign   from a seed, in batches that can be resumed; failures are kept in a database and tried first
"""

from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, settings

from .specs import Sizes


@dataclass(frozen=True)
class Profile:
    """`examples` and `steps` of the machine, and the sizes that it draws from."""

    examples: int
    steps: int
    sizes: Sizes
    derandomised: bool = False

    def settings(self, **given: Any) -> settings:
        """Hypothesis' settings of the profile; no deadline, because a kernel's first launch compiles it."""
        phases = (Phase.reuse, Phase.generate, *(() if self.derandomised else (Phase.shrink,)))
        chosen: dict[str, Any] = {
            "max_examples": self.examples,
            "stateful_step_count": self.steps,
            "deadline": None,
            "suppress_health_check": list(HealthCheck),
            "report_multiple_bugs": False,
            "print_blob": False,
            "database": None,
            "derandomize": self.derandomised,
            "phases": phases,
        }
        return settings(**{**chosen, **given})


PROFILES = {
    "ci": Profile(200, 8, Sizes(seeds=1, options=1, vocabulary=3), derandomised=True),
    "gpu": Profile(100, 16, Sizes(slots=5, window=8, cache=40, seeds=4, options=4, vocabulary=5)),
    "campaign": Profile(100, 20, Sizes(slots=5, window=8, cache=40, seeds=1000, options=4, vocabulary=5)),
}
