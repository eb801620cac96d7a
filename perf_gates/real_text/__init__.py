"""Speculation on real text: whole runs of an engine with drafts that are really proposed, verified, accepted and rejected."""
