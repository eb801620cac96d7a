"""Measurements of kernels, one family a file."""
