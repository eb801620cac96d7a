"""The causal convolution: a step, a window, a tree, packed prompts, the commit of accepted inputs."""
