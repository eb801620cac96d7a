"""The glossary: every axis letter and every named array of the project. Shapes are written only here.

axis  meaning                                              in the papers
b     sequence (row of the batch)                          B, batch
m     row of a window: b, or b times its drafts; a mark   N x M (Snakes and Ladders, section 4)
t     token of a window, or node of a tree                 L, T = K + 1
j     an earlier token of a window, as read by token t      L
h     head (value head of the delta rule)                  H, nheads
p     channel of a head                                    P, headdim (D in Snakes and Ladders)
n     state                                                N, dstate (P in Snakes and Ladders)
g     group; key head of the delta rule; KV head           G, ngroups; H_k; H_kv
k v   key and value channel of the delta rule              K, V
d     channel of Mamba-1, or of a short convolution        D, d_inner
c     channel of the convolution                           conv_dim
w     tap of the convolution                               d_conv, width
q     column of a short convolution's state, w - 1 of them L_cache - 1
e     channel of an attention head                         head_dim
u     channel of the residual stream                       d_model
l     position of a cache or of a ring                     L, cache length
f     frequency of the rotary embedding, or rotary angle,  head_dim / 2; num_rope_angles
      for two channels
s     slot of a pool of states                             slot, block
i     token of the vocabulary                              V
o r   output of a projection; rank of dt, of a latent, of  dt_rank; kv_lora_rank; mimo_rank
      Mamba-3's inputs

A token record has no `t`; a window record has `t` after the rows. `S` is a state, `M` the window of the convolution.
"""

import numpy as np
from jaxtyping import Bool, Float64, Int64

Array = np.ndarray

# Causal convolution
Channel = Float64[Array, "b c"]
Channels = Float64[Array, "b t c"]
ConvState = Float64[Array, "b c w"]  # the last w inputs, oldest first
ConvWeight = Float64[Array, "c w"]  # the last tap meets the newest input
ConvBias = Float64[Array, "c"]

# SSD (Mamba-2)
State = Float64[Array, "b h p n"]
States = Float64[Array, "b t h p n"]
Head = Float64[Array, "b h p"]
Heads = Float64[Array, "b t h p"]
PerHead = Float64[Array, "b h"]
PerHeads = Float64[Array, "b t h"]
Proj = Float64[Array, "b g n"]
Projs = Float64[Array, "b t g n"]
HeadParam = Float64[Array, "h"]
HeadChannelParam = Float64[Array, "h p"]

# Gated delta rule: h counts value heads, g key heads
DeltaState = Float64[Array, "b h k v"]
DeltaStates = Float64[Array, "b t h k v"]
Key = Float64[Array, "b g k"]
Keys = Float64[Array, "b t g k"]
Value = Float64[Array, "b h v"]
Values = Float64[Array, "b t h v"]
KeyGate = Float64[Array, "b h k"]  # Kimi Delta Attention: a log decay per key channel
KeyGates = Float64[Array, "b t h k"]

# Selective scan (Mamba-1)
ChannelState = Float64[Array, "b d n"]
ChannelStates = Float64[Array, "b t d n"]
Inner = Float64[Array, "b d"]
Inners = Float64[Array, "b t d"]
Shared = Float64[Array, "b n"]  # B and C are shared by all channels
Shareds = Float64[Array, "b t n"]
InnerParam = Float64[Array, "d"]
InnerStateParam = Float64[Array, "d n"]
InnerProjection = Float64[Array, "o d"]
StepProjection = Float64[Array, "d r"]

# Short convolution (LFM2): B, C and x are Inners
Columns = Float64[Array, "b d q"]  # the last w - 1 products B x, oldest first
ColumnStates = Float64[Array, "b t d q"]
ShortWeight = Float64[Array, "d _"]  # w taps, the last for the newest product

# Mamba-3: x, z, dt, A and trap are Heads and PerHeads
Packed = Float64[Array, "b h _"]  # the four pieces of a state, head by head: S (p n), angles (f), key (r n), value (p)
PackedStates = Float64[Array, "b t h _"]
FlatState = Float64[Array, "b _ _"]  # a state of two axes, of any recurrence, which checks its own
RankProj = Float64[Array, "b r g n"]
RankProjs = Float64[Array, "b t r g n"]
Angle = Float64[Array, "b f"]  # raw, the same for all heads
Angles = Float64[Array, "b t f"]
HeadAngle = Float64[Array, "b h f"]  # of a state
HeadKey = Float64[Array, "b h r n"]
StateParam = Float64[Array, "n"]
HeadRankParam = Float64[Array, "h r n"]
HeadRankChannelParam = Float64[Array, "h r p"]

# Layers: the axis `_` may have any size, which its record checks
Weight = Float64[Array, "_ _"]  # of a linear map: outputs, inputs
Scale = Float64[Array, "_"]  # of a norm, or of a projection, channel by channel
HeadKeyParam = Float64[Array, "h k"]

# Attention
Query = Float64[Array, "b t h e"]
KV = Float64[Array, "b t g e"]
Cache = Float64[Array, "b l g e"]
Latents = Float64[Array, "b l e"]  # of latent attention: a latent and a shared key for each token
KeyMaps = Float64[Array, "h k r"]  # from a latent (r) to the own channels k of a head's key
ValueMaps = Float64[Array, "h v r"]
Frequencies = Float64[Array, "f"]
Positions = Int64[Array, "b t"]  # of the tokens of a window in their sequence, 0 the first

# Rings of a replay buffer
RingHeads = Float64[Array, "b l h p"]
RingPerHeads = Float64[Array, "b l h"]
RingProjs = Float64[Array, "b l g n"]
RingValues = Float64[Array, "b l h v"]
RingKeys = Float64[Array, "b l g k"]
RingKeyGates = Float64[Array, "b l h k"]
RingInners = Float64[Array, "b l d"]
RingShareds = Float64[Array, "b l n"]
RingHeadKeys = Float64[Array, "b l h r n"]
RingAngles = Float64[Array, "b l h f"]
Held = Bool[Array, "b l"]  # which tokens of a ring, in order, are committed

# Rows, windows and trees
Lengths = Int64[Array, "b"]
Mask = Bool[Array, "b t"]
Parents = Int64[Array, "b t"]  # node 0 is the root, parent -1; a parent precedes its children; -2 pads
Path = Int64[Array, "b t"]  # accepted nodes, root first, padded with -1
Ancestors = Bool[Array, "b t j"]  # j lies on the path from the root to t, t included
Slots = Int64[Array, "b"]  # slot of each row in a pool; negative is padding
Fresh = Bool[Array, "b"]  # rows without an initial state, which start from zeros
Marks = Int64[Array, "m"]  # of chosen places in a packed run

# Tokens and distributions
Tokens = Int64[Array, "b t"]
Logits = Float64[Array, "b t i"]
Residual = Float64[Array, "b t u"]  # the residual stream of the language model
Embedding = Float64[Array, "i u"]
Probs = Float64[Array, "i"]
LogitRow = Float64[Array, "i"]
WindowLogits = Float64[Array, "t i"]  # one window of one sequence
RowProbs = Float64[Array, "b i"]
Sequence = Int64[Array, "l"]  # the tokens of one sequence: prompt and output
DraftRows = Int64[Array, "m t"]  # drafts of one sequence, a row each, the root left out
BigramTable = Int64[Array, "i m t"]  # per token, the drafts that follow it
Nodes = Int64[Array, "t"]  # per node of one tree: its token, or its parent
NodeProbs = Float64[Array, "t i"]  # per node, the law from which its children were drawn
Indices = Int64[Array, "b"]
RowNumbers = Float64[Array, "b"]  # one number of each row, such as a temperature
