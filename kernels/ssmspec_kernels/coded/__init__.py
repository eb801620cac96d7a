"""Recurrences whose states are kept as codes with scales."""
