"""The short convolution (LFM2): a token, a window, its states, packed prompts, a tree, the commit, a ring of products."""
