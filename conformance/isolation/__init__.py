"""Isolation of an adapter's process: its limits, the encoding of its messages, the sanitising of its text."""
