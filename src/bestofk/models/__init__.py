"""Models: any Hugging Face causal LM by id or folder, GGUF files, LoRA, tiny policies.

>>> from bestofk.models import load
>>> policy = load("tiny-countdown")
>>> policy.model.num_parameters() <= 400_000
True
"""

from bestofk.models.describe import describe
from bestofk.models.load import SHIPPED, Lora, Policy, load, load_tokenizer, save

__all__ = ["SHIPPED", "Lora", "Policy", "describe", "load", "load_tokenizer", "save"]
