"""Triton kernels; importing this package loads no Triton."""
