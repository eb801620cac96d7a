"""Campaigns: fuzzing for as long as wanted."""
