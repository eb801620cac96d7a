"""Hashes of code: all that a launcher runs, followed by name through its package, independent of file names.

`package` reads the modules and resolves names, `scopes` finds which names a function owns, `template` writes a definition
as text, `hashes` joins the definitions that a launcher reaches, `carried` says which older hashes belong to the same code.
"""
