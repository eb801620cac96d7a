"""Tests of ssmspec_ref."""
