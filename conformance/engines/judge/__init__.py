"""The judge: an engine through its configurations, each answer checked, each failure shrunk.

`judge` compares the plain output with the oracle and starts a `run` of each configuration; `attempts` sends one schedule to
an engine and judges the answers; `smallest` looks for the smallest schedule that fails; `found` holds the results.
"""

from .found import Failure, Found, purpose
from .judge import Judge

__all__ = ["Failure", "Found", "Judge", "purpose"]
