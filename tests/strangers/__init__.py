"""Kernels written by an author who had not seen the cases of the suite, and twenty ways to get them wrong."""
