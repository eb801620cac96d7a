"""Options that many operations have."""
