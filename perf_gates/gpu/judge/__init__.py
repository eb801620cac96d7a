"""Every kernel at the shapes of models, judged against the oracle on sampled rows: one family of kernels a file."""
