"""Attention over prompts, windows and trees; rotary embedding; the tree mask; compaction of accepted keys."""
