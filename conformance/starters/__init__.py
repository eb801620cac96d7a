"""Adapters to start from, one for each level: `ssmspec conform init` copies one. Each runs and passes unchanged."""
