"""Runs that compare speculation with plain decoding, token by token."""
