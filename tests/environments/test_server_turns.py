"""Trajectories from a server that speaks vLLM's wire format: token ids there and back."""

from __future__ import annotations

import threading

import pytest

import bestofk
from bestofk.environments.author_class import as_environment
from bestofk.environments.limits import TurnLimits
from bestofk.environments.rollout import TurnSampler
from bestofk.models import Policy, save
from bestofk.sampling import Sampling
from bestofk.sampling.vllm_server import EngineError, VLLMServer, drawn_rows
from bestofk.types import Prompt
from environments.chat_models import Echo, model, tokenizer
from environments.exact_rows import gap_of_own_tokens
from training.serving_peer import ServingPeer

ASKED = [Prompt(f"p{i}", ({"role": "user", "content": f"{i} and 7?"},), "t") for i in range(2)]
SAMPLING = Sampling(samples_per_prompt=4, max_new_tokens=120)
SHAPE = {"length": 2048, "hidden": 16, "layers": 1, "inner": 32}


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "chat"
    save(Policy(model(**SHAPE), tokenizer()), folder)
    return folder


@pytest.fixture
def serve(chat):
    """Makes a peer that serves the chat model; all are closed at the end."""
    peers = []

    def start(**options):
        peers.append(ServingPeer(chat, 0, **options))
        return peers[-1].url

    yield start
    for peer in peers:
        peer.close()


def trajectories(sampler, prompts=ASKED, seed=3):
    source = TurnSampler(sampler, as_environment(Echo), TurnLimits(), model="m", context=2048)
    return source.sample(prompts, seed=seed, sampling=SAMPLING)


def test_trajectories_of_a_server_are_exact_in_their_tokens_and_log_probs(serve):
    """Each own token against one plain forward pass; each reply as the template writes it."""
    policy, template = model(**SHAPE), tokenizer()
    groups = trajectories(VLLMServer(serve(), policy, template))
    assert gap_of_own_tokens(policy, groups, SAMPLING) < 1e-4
    several = 0
    for group in groups:
        for each in group.trajectories:
            talk = each.conversation
            several += talk.turns > 1
            told = template.decode(each.tokens[~each.own])
            replies = [m["content"] for m in talk.messages if m["role"] == "user"]
            assert told == "".join(
                f"\n<|im_start|>user\n{reply}<|im_end|>\n<|im_start|>assistant\n"
                for reply in replies
            )
    assert several >= 3


def test_the_draws_of_a_trajectory_depend_on_its_own_seed_and_place_alone(serve):
    server = VLLMServer(serve(), model(**SHAPE), tokenizer())
    groups = trajectories(server)
    assert trajectories(server) == groups
    assert trajectories(server, ASKED[1:2]) == groups[1:2]
    assert trajectories(server, seed=4) != groups
    rows = [each.tokens.tobytes() for group in groups for each in group.trajectories]
    assert len(set(rows)) == len(rows)


class Counted(Echo):
    """Says when a trajectory of the second prompt has gone on after a reply."""

    gone_on = threading.Semaphore(0)

    def reset(self, place: int = 0) -> None:
        super().reset()
        self.place = place

    def __call__(self, text: str) -> str | None:
        reply = super().__call__(text)
        if self.place == 1 and len(self.heard) == 2:
            self.gone_on.release()
        return reply


@pytest.mark.parametrize("n", [1, 4])
def test_a_slow_trajectory_does_not_hold_the_others(serve, n):
    """The first prompt's first turn comes after a second turn of the other prompt."""
    start: list[int] = []
    waited: list[bool] = []

    def hold(body):
        if body.get("prompt") == start:
            waited.append(Counted.gone_on.acquire(timeout=60))

    asked = [Prompt(p.id, p.text, "t", {"place": i}) for i, p in enumerate(ASKED)]
    server = VLLMServer(serve(holds=hold), model(**SHAPE), tokenizer())
    source = TurnSampler(server, as_environment(Counted), TurnLimits(), model="m", context=2048)
    start += source.text_for(asked[0]).prompt(asked[0])
    sampling = Sampling(samples_per_prompt=n, max_new_tokens=400)
    groups = source.sample(asked, seed=3, sampling=sampling)
    assert waited == [True]
    assert [len(group.trajectories) for group in groups] == [n, n]


def run_with(url, chat, folder, **settings):
    rows = [{"prompt": f"{i} and 7?"} for i in range(16)]
    return bestofk.train(
        chat, rows, environment=Echo, objective="max@2", samples_per_prompt=4, steps=2,
        dir=folder / "run", settings={
            "sampling.engine": "vllm", "sampling.server": url, "model.device": "cpu",
            "sampling.max_new_tokens": 120, "optimizer.learning_rate": 1e-2,
            "evaluation.prompts": 2, "evaluation.samples_per_prompt": 2,
            "sampling.prompts_per_step": 2, **settings,
        },
    )  # fmt: skip


def test_a_run_with_an_environment_trains_on_what_a_server_draws(serve, chat, tmp_path):
    run = run_with(serve(), chat, tmp_path)
    lines = [line for line in run.metrics if line["kind"] == "train"]
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        assert line["turns"] > 1
        assert max(line["sampler_gap_max"], line["probe_after"]) < 1e-4
    assert lines[1]["probe_before"] > 1e-4  # the server got the new weights


@pytest.mark.parametrize(
    ("hides", "error", "said"),
    [
        (False, EngineError, "continued other tokens than it was sent"),
        (True, ValueError, "the sampler's log-probs are .* away from the learner's"),
    ],
)
def test_a_server_that_tokenises_again_is_found_before_the_first_step(
    serve, chat, tmp_path, hides, error, said
):
    """By the ids that it says it continued, and else by the log-probs of a continued probe."""
    url = serve(tokenises_again=True, hides_prompts=hides)
    with pytest.raises(error, match=said):
        run_with(url, chat, tmp_path)
    assert not list((tmp_path / "run").glob("checkpoints/*"))


def test_a_server_with_fewer_positions_than_the_model_ends_trajectories_by_length(serve, chat):
    url = serve(context=60)
    server = VLLMServer(url, model(**SHAPE), tokenizer())
    source = TurnSampler(
        server, as_environment(Echo), TurnLimits(), model="m", context=server.context
    )
    groups = source.sample(ASKED, seed=3, sampling=SAMPLING)
    longest = max(len(g.prompt_tokens) + len(t.tokens) for g in groups for t in g.trajectories)
    assert longest <= 60
    talks = [each.conversation for group in groups for each in group.trajectories]
    endings = {talk.ended_by for talk in talks if talk}
    assert "length" in endings


CHOICE = {
    "index": 0, "finish_reason": "stop", "token_ids": [5, 6], "prompt_token_ids": [1, 2],
    "logprobs": {"token_logprobs": [-0.5, -1.0]},
}  # fmt: skip


def test_what_a_server_drew_is_read_in_the_order_of_its_samples():
    choices = [CHOICE | {"index": 1, "token_ids": [7, 8]}, CHOICE]
    rows = drawn_rows(choices, (1, 2), Sampling(samples_per_prompt=2))
    assert [ids.tolist() for ids, _ in rows] == [[5, 6], [7, 8]]
    assert [log_probs.tolist() for _, log_probs in rows] == [[-0.5, -1.0]] * 2


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"token_ids": None}, "gave 2 log-probs and no token ids"),
        ({"token_ids": [5]}, "gave 2 log-probs and 1 token ids"),
        ({"prompt_token_ids": [1, 3]}, "continued other tokens than it was sent"),
        ({"finish_reason": "abort"}, "1 of 1 completions, which ended by abort"),
    ],
)
def test_an_answer_that_cannot_be_trained_on_is_an_error(changed, said):
    with pytest.raises(EngineError, match=said):
        drawn_rows([CHOICE | changed], (1, 2), Sampling(samples_per_prompt=1))
