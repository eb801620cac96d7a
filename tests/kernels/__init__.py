"""Kernels in the interpreter and through the compiler, on the CPU."""
