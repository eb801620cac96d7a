"""Tasks of a newcomer as patches: each is applied to a copy of the tree and run."""
