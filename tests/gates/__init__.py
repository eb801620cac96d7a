"""Tests of perf_gates."""
