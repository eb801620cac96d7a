"""The kernels for the suite, one kind in each module; `adapters.kernels` is the adapter."""
