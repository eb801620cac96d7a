"""The small checkpoints that ship with the engine: how they were trained, so that anybody can train them again."""
