"""The float64 reference: every method of decoding and of rollback, one file each, written in the equations of its paper."""
