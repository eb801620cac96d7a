"""Bars, and what turns a run red."""
