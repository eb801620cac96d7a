"""The speculative engine."""
