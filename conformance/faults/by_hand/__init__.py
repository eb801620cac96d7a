"""Planted faults as engineers made them who wrote a whole implementation by hand."""
