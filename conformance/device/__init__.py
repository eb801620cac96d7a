"""Devices: which ones exist, and on which one a call of an implementation really ran."""
