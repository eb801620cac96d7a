"""Planted faults in how states and inputs lie in memory: formats, pools of slots, strides, bits."""
