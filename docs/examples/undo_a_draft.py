import numpy as np

from ssmspec_ref.backtrack import Accepted, Draft, activation_replay
from ssmspec_ref.conv import ConvParams
from ssmspec_ref.layers.mixer import MixerInputs, SSDGates, SSDMixer, new_state, scan
from ssmspec_ref.records import prefix
from ssmspec_ref.ssd import SSDParams

rng = np.random.default_rng(0)
layer = SSDMixer(ConvParams(rng.normal(size=(32, 4))), SSDParams(A=-rng.uniform(size=4)), channels=3, state=5, groups=2)
window = MixerInputs(rng.normal(size=(1, 6, 32)), SSDGates(dt=rng.normal(size=(1, 6, 4))))  # the root and five drafts

kept = activation_replay.start(new_state(layer, rows=1))
y, pending = activation_replay.verify(kept, Draft(window), layer)
kept = activation_replay.commit(pending, Accepted(np.array([3])), layer)  # the root and two drafts were accepted

_, plain = scan(new_state(layer, rows=1), prefix(window, 3), layer)  # plain decoding of those three tokens
assert np.array_equal(activation_replay.restore(kept, layer).S, plain.S)
