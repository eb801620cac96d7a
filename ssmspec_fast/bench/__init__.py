"""The cost of a step: models of the papers' dimensions with random weights, every method, window, tree and batch."""
