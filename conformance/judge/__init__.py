"""From a case and its output to a verdict, a diagnosis and the smallest failing case."""
