"""Sessions of decoders, compared with plain decoding: drawn, replayed, reduced."""
