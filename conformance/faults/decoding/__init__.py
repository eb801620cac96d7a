"""Planted faults of decoders over whole sequences."""
