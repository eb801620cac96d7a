"""An adapter of what keeps a state: windows are verified, a part is accepted, and the state follows. Here in NumPy.

ssmspec conform check --adapter MODULE:adapter      is the adapter itself right?
ssmspec conform run --adapter MODULE:adapter        is the decoder?
"""

import numpy as np

from ssmspec_ref.contract import Adapter, Capability, Limits, NumericContract, Subject


class Decoder:
    """A state for every token of a window, of which one is restored: `delta.verify_snapshots`.

    The same three methods are those of verify_replay, buffered_verify, buffered_step, and, with the convolution in front,
    of speculate.chain and speculate.tree.
    """

    def __init__(self, S, params):
        """The state (b h k v) that decoding starts from, and the parameters."""
        self.S, self.params = np.asarray(S, dtype=np.float32), params

    def verify(self, window, parents=None):
        """The outputs (b t h v) at every token of a window; nothing is accepted yet."""
        q, k, v, g, beta = (np.asarray(a, dtype=np.float32) for a in (window.q, window.k, window.v, window.g, window.beta))
        eps, heads = np.float32(self.params.eps), v.shape[2]
        scale = np.float32(q.shape[-1] ** -0.5 if self.params.scale is None else self.params.scale)
        q, k = (a / np.sqrt(np.sum(a * a, axis=-1, keepdims=True) + eps) for a in (q, k))
        q, k = (np.repeat(a, heads // a.shape[2], axis=2) for a in (scale * q, k))
        S, outputs, self.kept = self.S, [], [self.S]
        for t in range(v.shape[1]):
            S = np.exp(g[:, t])[..., None, None] * S
            u = beta[:, t, :, None] * (v[:, t] - np.einsum("bhkv, bhk -> bhv", S, k[:, t]))
            S = S + k[:, t, :, :, None] * u[:, :, None, :]
            outputs.append(np.einsum("bhkv, bhk -> bhv", S, q[:, t]))
            self.kept.append(S)
        return np.stack(outputs, axis=1)

    def commit(self, advanced, path):
        """Accept the first advanced[b] tokens of row b; 0: the row has no window and keeps its state."""
        kept = np.stack(self.kept)
        self.S = kept[advanced, np.arange(len(advanced))]

    def state(self):
        """What plain decoding of all that was accepted would hold."""
        return self.S


CONTRACT = NumericContract(function_ulp=3)  # float32 throughout; NumPy's exp needs 3 ulp

# The values of each option that the decoder takes; of an option that is not named it takes all values. Other cases are left
# out, and the report shows the reason.
TAKES = {"gate": ("head",), "l2_norm": ("on",)}
LIMITS = Limits(TAKES, reason="the decoder has no such option")


def adapter():
    """Named on the command line."""
    decoder = Capability(Decoder, CONTRACT, LIMITS)
    return Adapter("my decoder", "0.1", (Subject("snapshots", {"delta.verify_snapshots": decoder}),))
