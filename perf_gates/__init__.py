"""Performance gates: the cost of a kernel, counted on a CPU and timed on a GPU."""
