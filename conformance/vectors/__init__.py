"""Golden vectors: inputs, expected outputs and their bounds in files, for those who work without Python."""
