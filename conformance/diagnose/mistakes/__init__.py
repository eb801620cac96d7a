"""Mistakes that implementations make, each as a change of a case's inputs and in words."""
