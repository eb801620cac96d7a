"""Planted faults of recurrences and scans."""
