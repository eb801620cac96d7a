"""Small random checkpoints of the families.

Each is a folder that transformers reads, in float32 or bfloat16, with a drafter beside it (`FAMILY-drafter`): the same
weights moved by noise, so that its drafts are accepted often and not always.
"""

from .configs import COMPUTED, CONFIGS
from .folders import STORED, make, pair

__all__ = ["COMPUTED", "CONFIGS", "STORED", "make", "pair"]
