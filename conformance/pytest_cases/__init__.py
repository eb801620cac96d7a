"""The suite's cases as pytest tests: their ids, the items, and the session that runs them."""
