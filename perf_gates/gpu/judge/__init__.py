"""Every kernel at the shapes of models, compared with the oracle on sampled rows: one file for each family of kernels."""
