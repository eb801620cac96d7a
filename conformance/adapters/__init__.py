"""The adapters that ship, one module each with a function `adapter`. Implementations are imported when they are asked for."""

NAMES = ("reference", "transformers", "fla", "mamba_ssm", "vllm", "sglang", "flashinfer")
