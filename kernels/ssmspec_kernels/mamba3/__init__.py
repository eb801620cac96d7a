"""Mamba-3: a trapezoid of the last two inputs, keys and queries rotated by a running angle, inputs of rank r."""
