"""Kimi Delta Attention: the delta rule with a log decay for each key channel."""
