"""Checks that need no GPU: the catalogue of kernels, compiled code, counted bytes, budgets."""
