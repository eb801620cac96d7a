"""Sides of the core set beyond scans and steps: rings, snapshots, convolution, acceptance."""
