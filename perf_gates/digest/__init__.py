"""Digests of what a call gives the compiler and the GPU; a result is valid while the digest of its call is the same.

`launches` writes a launch as text, `calls` records a call on tensors without data, `measured` finds the calls of a tree of
this repository, `trees` runs that in a process with another tree or another Triton, `record` holds the digests of what was
measured, and `__main__` is the command that writes it.

Modules import this package and `static` by relative names only, and what is measured by absolute ones: so this code can
digest the kernels and measurements of an older revision.
"""
