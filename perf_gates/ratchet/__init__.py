"""Limits: the time of each measurement when it was last accepted, and the cells that missed their target then."""
