"""A captured graph of an operation: `replayed` has its cases, `replays` captures and replays, `tape` records on a CPU."""
