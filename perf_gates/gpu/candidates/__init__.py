"""Kernels that nothing of ours launches yet, timed beside those that stand: `python -m perf_gates.gpu.candidates`."""
