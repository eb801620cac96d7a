"""A failing case with one thing changed: the options and sizes with which it passes, and the sizes that fail."""
