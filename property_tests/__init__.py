"""Strategies, laws, a state machine and campaigns that test implementations against the reference: `ssmspec fuzz`."""
