"""The Hypothesis strategies: models, trees, schedules, distributions."""
