"""The small checkpoints that come with the engine: how they were trained, so that anybody can train them again."""
