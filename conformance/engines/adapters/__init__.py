"""Programs that run in an engine's own environment. Each speaks `protocol`, and imports only the engine and `lines`."""
