"""Implementations that misbehave, never return, or cheat."""
