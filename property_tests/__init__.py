"""Strategies, laws, a state machine and campaigns that hold implementations to the reference: `ssmspec fuzz`."""
