"""One decode step of Mamba2-2.7B in one launch: an experiment that says how near a step comes to its bytes.

`step.cu` is the kernel, `shares` says which part of the model a multiprocessor owns, `nvrtc` compiles and launches it, and
the command checks it against float64 and times it: docs/decisions/0012-one-launch-a-step.md. The engine does not launch it.
"""
