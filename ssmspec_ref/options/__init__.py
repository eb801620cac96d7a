"""Checks of what is given to a command, before any work: words, files, options that have no use together, what to install."""
