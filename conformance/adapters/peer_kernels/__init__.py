"""Shared parts of the adapters for other projects' Triton kernels."""
