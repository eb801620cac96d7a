"""Causal convolution along the ancestors of each node of a tree."""

from .conv import ConvParams
from .shapes import Channels, ConvState, Parents


def scan(M: ConvState, u: Channels, parents: Parents, params: ConvParams) -> Channels:
    raise NotImplementedError
