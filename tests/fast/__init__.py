"""Tests of ssmspec_fast."""
