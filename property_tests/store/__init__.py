"""What a campaign stores on disk: its batches as lines, its failures as programs, its state."""
