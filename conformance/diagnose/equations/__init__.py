"""The reference with one line changed: which change gives an implementation's outputs."""
