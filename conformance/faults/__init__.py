"""Small wrong implementations, each wrong in one stated way: the suite must fail every one of them.

`python -m conformance run --adapter conformance.faults.arithmetic:adapter` shows them failing.
"""
