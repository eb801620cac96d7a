"""The conformance suite: judges an implementation that it reaches through an adapter."""
