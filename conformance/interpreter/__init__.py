"""Triton's interpreter as a stand-in for the GPU: made to round as the hardware does, and watched at every access.

Set TRITON_INTERPRET=1 before triton is imported. Nothing here is installed for good: both modules offer context managers.
"""
