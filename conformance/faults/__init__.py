"""Small wrong implementations, each with one stated mistake: the suite must fail every one of them.

`python -m conformance run --adapter conformance.faults.catalogue:adapter --subject group_map` shows one failing.
`fault.py` says what a row of their tables is.
"""
