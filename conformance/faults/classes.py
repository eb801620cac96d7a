"""The classes of bugs that decoding and speculation of recurrent layers have had, from 164 public threads of 40 projects."""

CLASSES: dict[str, str] = {
    "CONV": "the window of the convolution is read or written at another place, width, order or slot",
    "PAD-LEAK": "padding changes the window, the recurrence or what is cached",
    "INIT-DROP": "a state that is there is ignored, zeroed or never set",
    "CHUNK": "the chunked form sums decays from another origin, twice, along another axis, or over another grid",
    "GROUP-MAP": "a head reads another group, or a norm takes its mean over another group",
    "VARIANT": "an option is handled in one path and not in its sibling",
    "NUMERIC": "a format is too narrow, a range too small, or a function another",
    "RULE": "the algebra of the delta rule is another",
    "TRANSPOSE": "a state is written key-major and read value-major",
    "INDEX": "an address is wrong: a stride assumed, a tile without its edge, an integer too small",
    "ROLLBACK": "rejected tokens stay in one part of the state",
    "COMMIT": "what was accepted is not committed, or what was never written is",
    "ACCEPT-IDX": "the accepted count is off by one, zero or unbounded where it is an index",
    "SLOT-SCOPE": "slot, row, layer and request are taken for each other",
    "PAD-SLOT": "a row that takes no part reads or writes a live one",
    "SLOT-REUSE": "what a request left behind is found by the next one",
    "REPLAY": "the bookkeeping of a ring or of a replay: when it is flushed, how far it is full, what is dead",
    "PREFIX-CKPT": "a checkpoint stands for another token than its key says",
    "SCHED": "a value of another step or rank is used",
    "CLASSIFY": "a row is given to the path of another kind: prompt, step or window",
    "TREE-MASK": "a node sees what is not on its path, or not all that is",
    "TREE-TOPO": "parent, ancestor or depth of a node is wrong",
    "TREE-COMMIT": "after acceptance another node is kept, or what is kept is moved wrongly",
    "Q-MISMATCH": "the q of the ratio is not the law that the draft was drawn from",
    "P-MISMATCH": "the p of the ratio is not the law that plain decoding would sample from",
    "ACCEPT-RULE": "ratio, residual or count do not keep the law",
    "RNG": "a random number is used twice, belongs to another, or meets an edge",
    "GREEDY": "ties, sentinels and token 0 at temperature 0",
    "GRAMMAR": "the mask of a constraint belongs to another position or request",
    "STOP": "an end of sequence or a budget inside an accepted run",
    "CHEAT": "no bug: what an implementation does that is after a pass",
    "CONDUCT": "no bug of the mathematics: shapes, formats, errors, inputs written",
}
"""What each class is; the last two are the suite's own."""

LEFT_OUT: dict[str, str] = {
    "GRAMMAR": "the contract has no operation that takes a constraint mask",
    "a resume column from the block size of attention": "blocks and their sizes are an engine's; no operation has them",
    "grammar rows advanced by a trimmed draft length": "as GRAMMAR",
    "offsets past 2^31 elements": "no input of the suite is that large; the tests of our kernels place slots there",
}
"""What is planted nowhere, and why."""
