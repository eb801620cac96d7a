"""An adapter of something that keeps a state: windows are verified, accepted in part, and committed. Here in NumPy.

ssmspec conform check --adapter MODULE:adapter      is the adapter itself right?
ssmspec conform run --adapter MODULE:adapter        is the decoder?
"""

import numpy as np

from ssmspec_ref.contract import Adapter, Capability, Limits, NumericContract, Subject


class Decoder:
    """Keeps a state for every token of a window, and restores one: `ssd.verify_snapshots`.

    The same three methods are those of verify_replay, buffered_verify, buffered_step, and, with the convolution in front,
    of speculate.chain and speculate.tree.
    """

    def __init__(self, S, params):
        """The state (b h p n) that decoding starts from, and the parameters."""
        self.S, self.A = np.asarray(S, dtype=np.float32), np.asarray(params.A, dtype=np.float32)

    def verify(self, window, parents=None):
        """The outputs (b t h p) at every token of a window; nothing is accepted yet."""
        x, dt, B, C = (np.asarray(a, dtype=np.float32) for a in (window.x, window.dt, window.B, window.C))
        B, C = (np.repeat(a, x.shape[2] // a.shape[2], axis=2) for a in (B, C))
        dt = np.logaddexp(np.float32(0), dt)
        S, outputs, self.kept = self.S, [], [self.S]
        for t in range(x.shape[1]):
            S = np.exp(dt[:, t] * self.A)[..., None, None] * S + (dt[:, t, :, None] * x[:, t])[..., None] * B[:, t, :, None]
            outputs.append(np.einsum("bhpn, bhn -> bhp", S, C[:, t]))
            self.kept.append(S)
        return np.stack(outputs, axis=1)

    def commit(self, advanced, path):
        """Accept the first advanced[b] tokens of row b; 0: the row has no window and keeps its state."""
        kept = np.stack(self.kept)
        self.S = kept[advanced, np.arange(len(advanced))]

    def state(self):
        """The state that plain decoding of the accepted tokens would have."""
        return self.S


CONTRACT = NumericContract(function_ulp=3)  # float32 throughout; NumPy's exp needs 3 ulp

# The values of each option that the decoder takes; of an option that is not named it takes all values. Other cases are left
# out, and the report shows the reason.
TAKES = {"D": ("off",), "z": ("off",), "dt_bias": ("off",), "softplus": ("on",), "dt_limit": ("off",)}
LIMITS = Limits(TAKES, reason="the decoder has no such option")


def adapter():
    """Named on the command line."""
    decoder = Capability(Decoder, CONTRACT, LIMITS)
    return Adapter("my decoder", "0.1", (Subject("snapshots", {"ssd.verify_snapshots": decoder}),))
