"""Planted faults of windows, commits, rings and rollback."""
