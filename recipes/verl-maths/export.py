"""GSM8K and MATH as verl's parquet files: `python export.py FOLDER [tiny]`.

The rows come from the folder $BESTOFK_DATA or from the Hub. tiny: a few problems, and a random
model of 70,000 parameters with a tokenizer of its own, to see that the parts fit.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas

from bestofk.tasks import task
from bestofk.types import Prompt

TEST = 500
"""Problems of each set at validation."""


def row(prompt: Prompt, source: str, index: int) -> dict[str, object]:
    """A prompt as verl's data sets have it; what the verifier needs is the "ground truth"."""
    truth = {"id": prompt.id, "spec": dict(prompt.spec), "verifier": "maths"}
    return {
        "data_source": source,
        "prompt": [dict(message) for message in prompt.text],
        "ability": "maths",
        "reward_model": {"style": "rule", "ground_truth": json.dumps(truth)},
        "extra_info": {"index": index},
    }


def export(folder: Path, style: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {"train": 16, "test": 4} if style == "tiny" else {"train": None, "test": TEST}
    sets = {name: task(name, style="chat") for name in ("gsm8k", "math")}
    for split, size in sizes.items():
        rows = [
            row(prompt, name, index)
            for name, problems in sets.items()
            for index, prompt in enumerate(problems.split(split)[:size])
        ]
        pandas.DataFrame(rows).to_parquet(folder / f"{split}.parquet")
        if style == "tiny" and split == "train":
            make_model(folder / "model", [str(each["prompt"]) for each in rows])


def make_model(folder: Path, texts: list[str]) -> None:
    """A random Llama and a byte-level tokenizer, saved as transformers reads them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<pad>", "<end>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=512, special_tokens=special, initial_alphabet=alphabet),
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<end>")
    tokenizer.chat_template = "{% for one in messages %}{{ one['content'] }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=1024,
        pad_token_id=0, eos_token_id=1, bos_token_id=None, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


if __name__ == "__main__":
    export(Path(sys.argv[1]), *sys.argv[2:])
