"""The commands of the engine: `ssmspec generate` and `ssmspec traffic`."""
