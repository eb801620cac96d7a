"""The fixture that runs the command."""

from .trials import trying

__all__ = ["trying"]
