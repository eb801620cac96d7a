"""Drafting as the papers define it: what is proposed after the root, never what is accepted of it."""
