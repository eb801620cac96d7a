"""Several sequences in one run, cut into chunks: which tokens belong to a program of the grid.

    sequence b   tokens bounds[b] .. bounds[b + 1] - 1, cut into chunks from its own first token; the last may be short   (1)
    chunk c      counted over the sequences in order; there are at most `most` of them, for any bounds                 (2)

Bounds are on the device and the host does not read them: the grid has a program for each chunk that could exist.
"""

import triton
import triton.language as tl

from ssmspec_ref.errors import ParameterError, ShapeMismatch


def most_chunks(tokens: int, sequences: int, chunk: int) -> int:
    """The largest number of chunks (2) of `tokens` tokens in `sequences` sequences."""
    return tokens // chunk + sequences


def check_packed(axes: dict[str, int], chunk: int) -> int:
    """The number of sequences.

    Raises: ShapeMismatch (bounds that do not match the sequences), ParameterError (a chunk that is not a power of two >= 16).
    """
    sequences = axes["m"] - 1
    if sequences < 1 or axes.get("b", sequences) != sequences:
        rows = "at least one sequence" if sequences < 1 else f"{axes['b']} sequences"
        raise ShapeMismatch(
            f"bounds hold {axes['m']} entries for {rows}; give the first token of each, and the end of the last"
        )
    if chunk < 16 or chunk & (chunk - 1):
        raise ParameterError(f"chunk is {chunk}; give a power of two, 16 or more")
    return sequences


@triton.jit
def _sequences(bounds, sequences, tokens, CHUNK: tl.constexpr, BLOCK_B: tl.constexpr):
    """For all sequences: number, first token, end, number of chunks and of chunks before (1). All tokens lie inside the
    run."""
    i = tl.arange(0, BLOCK_B)
    real = i < sequences
    begin = tl.minimum(tl.maximum(tl.load(bounds + i, mask=real, other=0).to(tl.int64), 0), tokens)
    end = tl.minimum(tl.maximum(tl.load(bounds + i + 1, mask=real, other=0).to(tl.int64), begin), tokens)
    count = tl.where(real, (end - begin + CHUNK - 1) // CHUNK, 0)
    return i, begin, end, count, tl.cumsum(count, axis=0) - count


@triton.jit
def chunk_place(bounds, c, sequences, tokens, CHUNK: tl.constexpr, BLOCK_B: tl.constexpr):
    """The sequence of chunk c, -1 if there is no such chunk, the first token of the chunk, and the end of the sequence."""
    i, begin, end, count, before = _sequences(bounds, sequences, tokens, CHUNK, BLOCK_B)
    mine = (before <= c) & (c < before + count)
    b = tl.max(tl.where(mine, i, -1), axis=0).to(tl.int64)
    start = tl.max(tl.where(mine, begin + (c - before) * CHUNK, 0), axis=0)
    return b, start, tl.max(tl.where(mine, end, 0), axis=0)


@triton.jit
def sequence_place(bounds, b, sequences, tokens, chunks, CHUNK: tl.constexpr, BLOCK_B: tl.constexpr):
    """The first token of sequence b, its end, its first chunk, and its number of chunks, limited to the available room."""
    i, begin, end, count, before = _sequences(bounds, sequences, tokens, CHUNK, BLOCK_B)
    mine = i == b
    start, stop = tl.sum(tl.where(mine, begin, 0), axis=0), tl.sum(tl.where(mine, end, 0), axis=0)
    first, of_b = tl.sum(tl.where(mine, before, 0), axis=0), tl.sum(tl.where(mine, count, 0), axis=0)
    return start, stop, first, tl.minimum(of_b, chunks - first)
