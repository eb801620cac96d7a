"""Planted faults of whole layers, attention and prompts."""
