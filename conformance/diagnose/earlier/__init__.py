"""Failures that depend on earlier calls: on how many there were, or on what they left behind."""
