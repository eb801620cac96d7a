"""SSD (Mamba-2): steps, scans, windows, trees, prompts, snapshots and commits."""
