"""What is timed on a GPU, one family a file."""
