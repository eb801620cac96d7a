"""A campaign of breaks: how many of the changes that could be made to the kernels' sources their cases reject.

    python -m tests.kernels.campaign.run --seed 1 --count 130 --out breaks.jsonl
    python -m tests.kernels.campaign.table breaks.jsonl > docs/evidence/kernel-breaks.md

After a change of the kernels, `run --carry` keeps the breaks of the modules that define the same, and draws as many anew in
the others; `run --again` judges the survivors again for which `equivalent.toml` has no argument.

`places` finds what can be changed, `keys` names it, `draw` chooses uniformly among it, `cases` names the tests of a kernel,
`run` judges each break in a process of its own, `table` writes what came of it.
"""
