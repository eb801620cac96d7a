"""From measured results to verdicts."""
