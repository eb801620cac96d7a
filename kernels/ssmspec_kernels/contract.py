"""What the kernels declare of their arithmetic: what they are judged by."""

from ssmspec_ref.contract import NumericContract

# 3 ulp: NumPy's exp, which stands for the hardware's in the interpreter, has 2.52; the hardware's functions have less.
CONTRACT = NumericContract(exp="ex2", function_ulp=3.0, softplus_threshold=float("inf"))
"""Everything in fp32; in what the state and the activations are stored, and how a window is evaluated, is said beside."""
