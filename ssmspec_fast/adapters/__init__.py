"""Adapters of the engine and of its Triton kernels for the conformance suite."""
