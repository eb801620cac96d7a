"""The sizes of the models whose kernels are measured, tested and compiled."""

SSD = {"mamba2-2.7b": (80, 64, 128, 1), "nemotron-3-nano-4b": (96, 80, 128, 8)}
"""h, p, n, g: heads, channels a head, state, groups."""
DELTA = {"qwen3.5-4b": (16, 32, 128, 128)}
"""g, h, k, v: heads of keys, heads of values, channels of a key, channels of a value."""
KDA = {"kimi-linear": (32, 32, 128, 128)}
"""The same, of Kimi Delta Attention (Kimi-Linear-48B-A3B)."""
KDA_BOUND = -5.0
"""The lower bound of a log decay, that of Kimi K3."""
CONV = {"mamba2-2.7b": 5376, "nemotron-3-nano-4b": 9728, "qwen3.5-4b": 8192}
"""Channels; the width is 4."""
SHORTCONV = {"lfm2-1.2b": (2048, 3)}
"""d, w: channels, taps of the short convolution; those of LFM2-2.6B are the same."""
SELECTIVE = {"mamba-2.8b": (5120, 16)}
"""d, n: channels, state."""
MAMBA3 = {"mamba3-siso": (64, 64, 128, 1, 32, 1), "mamba3-mimo": (64, 64, 128, 1, 32, 4)}
"""h, p, n, g, f, r: heads of 4096 inner channels, channels, state, groups, angles, rank; the defaults of mamba_ssm."""
ATTENTION = {"nemotron-3-nano-4b": (40, 8, 128)}
"""h, g, e: heads of queries, heads of keys, channels."""
BATCHES = (1, 4, 16, 64, 256)
"""The numbers of rows at which they are measured."""
