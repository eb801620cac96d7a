"""An adapter of a whole engine: prompts in, tokens out. Speculative output is compared with plain output, token by token.
Here the model is a rule over integers; put your engine in its place.

    ssmspec conform run --adapter MODULE:adapter
"""

import numpy as np

from ssmspec_ref.contract import Adapter, Capability, NumericContract, Subject

VOCABULARY = 64


def following(tokens):
    """The model: the most likely next token."""
    return int(tokens[-1] + 3 * tokens[-2] * (len(tokens) % 5 == 0)) % VOCABULARY


def plain(prompt, count):
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(following(tokens))
    return tokens[len(prompt) :]


def speculative(prompt, count, drafts=3):
    """Drafts repeat the last token and are verified one by one: those that agree are accepted, and one token follows. Returns
    the tokens, and how many drafts were proposed and accepted."""
    tokens, proposed, accepted = list(prompt), 0, 0
    while len(tokens) < len(prompt) + count:
        proposed += drafts
        for draft in [tokens[-1]] * drafts:
            right = following(tokens)
            tokens.append(right)
            if draft != right:
                break
            accepted += 1
    return tokens[len(prompt) : len(prompt) + count], proposed, accepted


def generate(prompts, count, speculate):
    """`count` greedy tokens (b, count), int64, after prompts (b, t); with speculation, or without.

    With speculation also how many drafts were proposed and accepted, for each prompt or in all: if none was accepted, or none
    rejected, the verdict is "not exercised". An engine that does not know them returns the tokens only.
    """
    if not speculate:
        return np.array([plain(prompt.tolist(), count) for prompt in prompts])
    answers = [speculative(prompt.tolist(), count) for prompt in prompts]
    tokens, proposed, accepted = zip(*answers, strict=True)
    return np.array(tokens), np.array(proposed), np.array(accepted)


def adapter():
    """Named on the command line. The contract says how the logits are computed; tokens are compared with ==."""
    engine = Subject("engine", {"generate.greedy": Capability(generate, NumericContract())})
    return Adapter("my engine", "0.1", (engine,))
