"""All gates of a GPU runner, in one command: `python -m perf_gates.gpu_gates --out DIR`."""
