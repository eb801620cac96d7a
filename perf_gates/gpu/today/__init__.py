"""Other projects' kernels that engines run today, beside ours: `python -m perf_gates.gpu --only peers_today --peers FOLDER`.

FOLDER/today holds what `python -m perf_gates.gpu.today.build FOLDER` made from the wheels in `wheels.toml`.
"""
