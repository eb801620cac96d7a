"""Small wrong implementations, each with one stated mistake: the suite must fail every one of them.

`python -m conformance run --adapter conformance.faults.recurrences.arithmetic:adapter` shows them failing.
"""
