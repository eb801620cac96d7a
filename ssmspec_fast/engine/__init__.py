"""The engine: prompts in, tokens out, over a batch of sequences that join, end and leave."""
