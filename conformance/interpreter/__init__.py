"""Triton's interpreter in place of a GPU: it rounds like the hardware, and every memory access can be checked.

Set TRITON_INTERPRET=1 before triton is imported. All changes are made by context managers, and undone when they end.
"""
