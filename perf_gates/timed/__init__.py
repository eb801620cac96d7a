"""The core set with pytest-benchmark, on a GPU: `pytest perf_gates/timed/core_set.py --benchmark-json FILE`."""
