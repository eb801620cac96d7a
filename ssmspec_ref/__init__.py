"""The float64 oracle: every decode and backtracking path, one a file, reading like the paper."""
