"""What the parts of a case id mean, in words."""
