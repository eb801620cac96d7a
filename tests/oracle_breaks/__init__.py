"""A campaign of breaks in the oracle's sources: how many the suite's cases reject, where a broken copy is what is judged.

    python -m tests.oracle_breaks.run --seed 1 --count 120 --workers 24 --out breaks.jsonl
    python -m tests.oracle_breaks.table breaks.jsonl > docs/evidence/oracle-breaks.md

The places and the draw are those of the campaign over the kernels (`tests.kernels.campaign`).
"""
