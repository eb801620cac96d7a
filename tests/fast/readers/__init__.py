"""Fuzzers of what the engine reads: configs, headers, tokenizers."""
