"""Laws that implementations must satisfy."""
