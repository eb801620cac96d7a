"""Planted faults of acceptance and sampling."""
