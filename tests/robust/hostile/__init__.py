"""Eighty adapters and programs that attack the suite which judges them. None computes what it should."""
