"""Performance gates: what a kernel may cost, counted on a CPU and timed on a GPU."""
