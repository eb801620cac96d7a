"""Layers as records of tensors, with their functions of single tokens; methods implement what carries a state."""
