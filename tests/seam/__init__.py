"""The seam for recurrences: registries, and a recurrence that is registered at run time."""
