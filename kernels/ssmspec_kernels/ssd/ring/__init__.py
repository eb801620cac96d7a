"""SSD from a checkpoint and a ring: standard decode, verification, flush."""
