"""`ssmspec conform try`: from a function to an adapter, and to its verdict.

`spellings` are the names that projects give to inputs and options, `reading` reads a signature by them, `layouts` lists what
the names leave open, `source` writes an adapter for a guess, `search` calls each on drawn cases and compares, `answer` says
what was found, and `command` is the command.
"""
