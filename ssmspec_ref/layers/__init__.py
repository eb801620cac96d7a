"""Layers: linear maps, norms, rotary positions, the mixer of a recurrent layer, and the layer around it."""
