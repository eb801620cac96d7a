"""The speculative engine: `load` a checkpoint, `generate` from prompts."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import load
    from .engine.requests import Settings
    from .engine.sampling import Sampling
    from .generator import Completion, Generation, Generator, Piece

__all__ = ["Completion", "Generation", "Generator", "Piece", "Sampling", "Settings", "load"]
HOMES = {"Settings": "engine.requests", "Sampling": "engine.sampling", "load": "api"}


def __getattr__(name: str) -> Any:
    """Imports the names above on first use: a user of one part does not wait for all."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{HOMES.get(name, 'generator')}", __name__), name)
