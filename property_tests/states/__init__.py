"""The life of states under random calls."""
