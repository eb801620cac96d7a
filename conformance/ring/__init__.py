"""Algebra without rounding: the oracle and the kernels over integers mod 2^64, where right and wrong differ by ==."""
