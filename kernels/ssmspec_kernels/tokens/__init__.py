"""Acceptance, commit of tokens and n-gram drafts, on the device."""
