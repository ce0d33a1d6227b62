"""What the learner finds out about a model before it trains it."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    BertConfig,
    BertLMHeadModel,
    Gemma2Config,
    Gemma2ForCausalLM,
)

from bestofk.learning import Learner, batching
from bestofk.learning.scorer import Scorer
from policies import fixed, llama, random_groups

SHAPE: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0,
    "max_position_embeddings": 128, "initializer_range": 0.1,
}  # fmt: skip


class Deaf(torch.nn.Module):
    """An attention that drops the keyword arguments it is called with."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("segments", None)
        kwargs["attention_mask"] = None
        return self.inner(*args, **kwargs)


def broken() -> Any:
    """A decoder whose layers do not pass on how the rows lie: every token sees all before it."""
    model = llama()
    for layer in model.model.layers:
        layer.self_attn = Deaf(layer.self_attn)
    return model


def test_rows_are_padded_from_now_on_where_packing_changes_the_log_probs() -> None:
    groups = random_groups(3, 3)
    expected = Learner(fixed(broken), layout="padded").log_probs(groups).log_prob
    learner = Learner(fixed(broken))
    assert learner.batching.layout == "packed"  # nothing has been seen yet
    with pytest.warns(UserWarning, match=r"packed rows of LlamaForCausalLM .* padded from now on"):
        found = learner.log_probs(groups)
    assert learner.batching.layout == "padded"
    np.testing.assert_allclose(found.log_prob, expected, atol=1e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner.step(groups, np.ones((3, 3)))


def test_a_resumed_learner_pads_where_it_did_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its own first batch would show no difference."""
    groups = random_groups(3, 3)
    learner = Learner(fixed(broken))
    with pytest.warns(UserWarning, match="padded from now on"):
        learner.log_probs(groups)
    monkeypatch.setattr(batching, "layout_gap", lambda score, reduced: (0.0, 1.0))
    for layout, expected in (("auto", "padded"), ("packed", "packed")):
        resumed = Learner(fixed(broken), layout=layout)
        resumed.load_state_dict(learner.state_dict())
        resumed.log_probs(groups)
        assert resumed.batching.layout == expected


def test_packed_by_name_is_an_error_there() -> None:
    learner = Learner(fixed(broken), layout="packed")
    with pytest.raises(ValueError, match="take layout 'padded'"):
        learner.step(random_groups(3, 3), np.ones((3, 3)))


def test_a_soft_capped_head_is_found_however_small_the_logits_are() -> None:
    """At logits near 0 a cap changes nothing that rounding would not."""
    small: dict[str, Any] = {"initializer_range": 1e-3, "attn_implementation": "eager"}
    config = Gemma2Config(**{**SHAPE, **small})
    capped = Gemma2ForCausalLM(config).eval()
    assert not Scorer(capped)._split
    config.final_logit_softcapping = None
    assert Scorer(Gemma2ForCausalLM(config).eval())._split
    assert Scorer(fixed(llama))._split


def test_an_encoder_is_an_error() -> None:
    shape = {k: SHAPE[k] for k in ("vocab_size", "hidden_size", "intermediate_size")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bert = BertLMHeadModel(BertConfig(**shape, num_hidden_layers=2, num_attention_heads=4))
    with pytest.raises(ValueError, match=r"BertLMHeadModel\) is not causal: .*encoder"):
        Learner(bert)
