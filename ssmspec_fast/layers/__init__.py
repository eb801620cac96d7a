"""Layers as records of tensors, with the functions that work token by token; what carries a state is a method's."""
