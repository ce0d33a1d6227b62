"""Models: any Hugging Face causal LM by id or folder, GGUF files, LoRA, tiny policies.

>>> from bestofk.models import load
>>> policy = load("tiny-countdown")
>>> policy.model.num_parameters() <= 400_000
True
"""

from bestofk.models.describe import describe
from bestofk.models.load import SHIPPED, Lora, Policy, describe_policy, load, save

__all__ = ["SHIPPED", "Lora", "Policy", "describe", "describe_policy", "load", "save"]
