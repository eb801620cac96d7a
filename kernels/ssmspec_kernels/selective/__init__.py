"""The selective scan (Mamba-1): steps and trees."""
