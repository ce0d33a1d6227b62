"""Reward models and judges: a classifier trained here, and scripted servers on loopback."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForSequenceClassification, PreTrainedTokenizerFast

import bestofk as bk
from bestofk.rewards import scored_by, verifier
from bestofk.rewards.base import UnusableFunction
from bestofk.rewards.learned import mark_of
from bestofk.types import Prompt
from evaluation.faulty_server import FaultyServer, send

WORDS = ["<pad>", "<eos>", "<unk>", "good", "bad", "so", "say", "it"]
PROMPT = Prompt("p", "say it ", "test")
TEXTS = ["good", "bad", "so good", "bad bad so", "good so so so good", "so"]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny reward model that has learned how many more "good" than "bad" a text has."""
    folder = tmp_path_factory.mktemp("reward-model")
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    torch.manual_seed(0)
    config = LlamaConfig(  # type: ignore[call-arg]
        vocab_size=len(WORDS), hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, num_labels=1, pad_token_id=0,
        max_position_embeddings=64,
    )  # fmt: skip
    model = LlamaForSequenceClassification(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(300):
        rows = torch.randint(3, 6, (64, 6))
        worth = ((rows == 3).sum(1) - (rows == 4).sum(1)).float()
        loss = (model(rows).logits[:, 0] - worth).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_a_reward_model_pays_its_logit_whatever_the_batch(classifier: Path) -> None:
    judge = verifier(f"reward-model:{classifier}", batch=4)
    together = judge([PROMPT] * 6, TEXTS)
    alone = [judge([PROMPT], [text])[0] for text in TEXTS]
    model = LlamaForSequenceClassification.from_pretrained(classifier)
    for text, one, other in zip(TEXTS, together, alone):
        ids = [WORDS.index(word) for word in (PROMPT.text + text).split()]  # type: ignore[operator]
        with torch.no_grad():
            expected = model(torch.tensor([ids])).logits.item()
        assert one.reward == pytest.approx(expected, abs=1e-4)
        assert other.reward == pytest.approx(expected, abs=1e-4)
        assert one.score == one.reward
    assert together[0].reward > together[1].reward


def test_a_reward_model_chooses_what_another_verifier_pays(classifier: Path) -> None:
    texts = iter(["bad bad", "so", "good good", "good"] * 4)

    def next_text(handler: Any, body: dict[str, Any]) -> None:
        choices = [{"message": {"content": next(texts)}, "finish_reason": "stop"}]
        send(handler, 200, json.dumps({"choices": choices}).encode())

    with FaultyServer(always={"": next_text}) as server:
        scorer = verifier(f"reward-model:{classifier}")
        (best,) = bk.best_of(server.url, ["say it "], 4, scorer=scorer, name="m")
        assert best is not None
        assert (best["completion"], best["chosen_by"]) == ("good good", "score")
    paid = scored_by(verifier("exact"), verifier(f"reward-model:{classifier}"))
    prompt = Prompt("p", "say it ", "test", {"expected": "bad"})
    (verdict,) = paid([prompt], ["<answer>bad</answer>"])
    assert verdict.reward == 1.0
    assert verdict.score is not None


def test_a_model_with_two_labels_is_no_reward_model(tmp_path: Path, classifier: Path) -> None:
    config = LlamaConfig.from_pretrained(classifier, num_labels=2)
    LlamaForSequenceClassification(config).save_pretrained(tmp_path)
    PreTrainedTokenizerFast.from_pretrained(classifier).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"a reward model has one label, .* has 2"):
        verifier(f"reward-model:{tmp_path}")


def pooled(value: Any) -> Any:
    def answer(handler: Any, body: dict[str, Any]) -> None:
        assert body["messages"][-1]["role"] == "assistant"
        send(handler, 200, json.dumps({"data": [{"index": 0, "data": value}]}).encode())

    return answer


def test_a_served_reward_model_gives_one_number_or_is_unscored() -> None:
    values: list[tuple[Any, float]] = [([1.5], 1.5), ([[-2.0]], -2.0), (0.25, 0.25)]
    for value, reward in values:
        with FaultyServer(always={"": pooled(value)}) as server:
            with verifier(f"reward-model:rm@{server.url}") as judge:
                (verdict,) = judge([PROMPT], ["x"])
            assert (verdict.reward, verdict.score) == (reward, reward)
    wrong: list[Any] = [[1.0, 2.0], "high", [], float("nan"), None, True]
    for value in wrong:
        with FaultyServer(always={"": pooled(value)}) as server:
            with verifier(f"reward-model:rm@{server.url}") as judge:
                (verdict,) = judge([PROMPT], ["x"])
            assert verdict.status == "unscored"
            assert "one number is needed, /pooling gave" in verdict.detail


def grading(handler: Any, body: dict[str, Any]) -> None:
    """Grades by the length of the answer, as asked for."""
    asked = body["messages"][0]["content"]
    answer = asked.partition("<answer_to_grade>")[2].partition("</answer_to_grade>")[0].strip()
    choices = [{"message": {"content": f"Hm.\nScore: {min(10, len(answer))}"}}]
    send(handler, 200, json.dumps({"choices": choices}).encode())


def test_a_judge_grades_by_its_rubric_and_is_asked_once_for_each_text(tmp_path: Path) -> None:
    (tmp_path / "rubric.md").write_text("Longer is better.\n")
    with FaultyServer(always={"": grading}) as server, ExitStack() as stack:
        options: dict[str, Any] = {"rubric": str(tmp_path / "rubric.md"), "concurrency": 2}
        judge = stack.enter_context(verifier(f"judge:m@{server.url}", **options))
        texts = ["abc", "abcdefghijklm", "<think>long</think>ab", "abc"]
        for _ in range(2):
            verdicts = [judge([PROMPT], [text])[0] for text in texts]
            assert [verdict.reward for verdict in verdicts] == [0.3, 1.0, 0.2, 0.3]
            assert [verdict.status for verdict in verdicts] == [
                "partial",
                "correct",
                *["partial"] * 2,
            ]
        assert "Longer is better." in server.requests[0]["messages"][0]["content"]
        assert len(server.requests) == 3


@pytest.mark.parametrize("answer", ["fine", "Score: 11", "Score: high", "Score: 3 of 10\nyes", ""])
def test_a_judge_without_a_mark_is_unscored(answer: str) -> None:
    with pytest.raises(ValueError, match="a judge ends with"):
        mark_of(answer)

    def vague(handler: Any, body: dict[str, Any]) -> None:
        send(handler, 200, json.dumps({"choices": [{"message": {"content": answer}}]}).encode())

    with FaultyServer(always={"": vague}) as server, verifier(f"judge:m@{server.url}") as judge:
        (verdict,) = judge([PROMPT], ["x"])
        assert verdict.status == "unscored"
        assert len(server.requests) == 3


def test_a_judge_is_repeated_bounded_and_keeps_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")

    def reject(handler: Any, body: dict[str, Any]) -> None:
        send(handler, 401, handler.headers["Authorization"].encode())

    with FaultyServer(["429", "500", "cut", "garbage", grading]) as server:
        with verifier(f"judge:m@{server.url}") as judge:
            (verdict,) = judge([PROMPT], ["x"])
        assert verdict.reward == 0.1
        assert len(server.requests) == 5
    with FaultyServer(always={"": grading}) as server:
        bounded = verifier(f"judge:m@{server.url}", most_calls=2)
        with bounded as judge, pytest.raises(UnusableFunction, match="bound of 2 calls is reached"):
            [judge([PROMPT], [text]) for text in "abc"]
    with FaultyServer(always={"": reject}) as server:
        with (
            verifier(f"judge:m@{server.url}") as judge,
            pytest.raises(UnusableFunction) as raised,
        ):
            judge([PROMPT], ["x"])
        assert "sk-secret" not in str(raised.value)
        assert "answered 401 Bearer ***" in str(raised.value)


@pytest.mark.parametrize(
    "name", ["judge:m", "judge:http://x/v1", "judge:@http://x", "reward-model:m@ftp://x"]
)
def test_a_judge_is_named_with_its_model_and_address(name: str) -> None:
    with pytest.raises(ValueError, match="behind a server is"):
        verifier(name)
