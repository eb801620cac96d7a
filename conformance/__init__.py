"""The conformance suite: tests an implementation through an adapter."""
