"""Drawn tests: machines, laws, acceptance, campaigns."""
