"""The gated delta rule: steps, scans, windows, trees, prompts and snapshots."""
