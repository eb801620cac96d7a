"""The progress of a run: the folder that it owns, the report that it continues, the shards that it is split into."""
