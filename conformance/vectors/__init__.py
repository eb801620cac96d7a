"""Golden vectors: files with inputs, expected outputs and bounds, for users of other languages."""
