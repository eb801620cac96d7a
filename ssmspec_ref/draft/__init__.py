"""Drafting as defined by the papers: the tokens proposed after the root. Acceptance is separate (`accept`)."""
