"""Measurements of whole steps of the engine."""
