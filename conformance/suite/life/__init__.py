"""The life of a state: saved at boundaries, found again by a prefix, forked, moved to another server, cut by rank."""
