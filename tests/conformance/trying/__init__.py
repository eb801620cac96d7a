"""Tests of `ssmspec conform try`."""
