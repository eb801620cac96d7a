"""Mistakes of implementations as changes of a right operation: the one vocabulary of planted faults and of diagnosis."""
