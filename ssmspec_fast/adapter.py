"""The adapter that `ssmspec conform run --adapter ssmspec_fast` finds."""

from .adapters.engine import adapter

__all__ = ["adapter"]
