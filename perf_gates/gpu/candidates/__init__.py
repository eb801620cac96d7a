"""Kernels that nothing of ours launches yet, timed beside the current ones: `python -m perf_gates.gpu.candidates`."""
