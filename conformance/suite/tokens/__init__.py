"""Operations on tokens: drafts from a text, choices from logits, positions of nodes, settings of each row."""
