"""Measurements on a GPU, one file for each family."""
