"""The adapters that ship, one module each with a function `adapter`. Each imports its implementation only when called."""

NAMES = ("reference", "transformers", "fla", "mamba_ssm", "vllm", "sglang", "flashinfer", "mlx_lm", "causal_conv1d")
