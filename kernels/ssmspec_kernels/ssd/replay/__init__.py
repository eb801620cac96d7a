"""SSD with activation replay: the accepted tokens of the last window, then the next window, in one launch."""
