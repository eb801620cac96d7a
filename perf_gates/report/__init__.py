"""Tables and pages made of results."""
