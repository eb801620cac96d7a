"""Running cases: which ones, where the adapter is called, and with which limits."""
