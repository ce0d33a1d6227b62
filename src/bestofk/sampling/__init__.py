"""Sampling: prompts → groups of completions, through one interface.

`Sampler` is the interface and `Sampling` its parameters; neither needs PyTorch. The default,
`bestofk.sampling.decode.ModelSampler`, samples any Hugging Face causal LM on CPU or GPU.
"""

from bestofk.sampling.sampler import Sampler, Sampling, ServerLost, WeightHolder

__all__ = ["Sampler", "Sampling", "ServerLost", "WeightHolder"]
