"""Models: their config, their checkpoint, their forward pass and their tokenizer."""
