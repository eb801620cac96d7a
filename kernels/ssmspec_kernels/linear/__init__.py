"""Linear layers for few rows, and the norms around them."""
