"""The part of docs/adapters/others.md that is ours: each snippet with stand-ins for its host."""

import asyncio
import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

import bestofk
from bestofk.objectives import DroppedGroups, ObjectiveWarning

PAGE = (Path(__file__).parents[2] / "docs" / "adapters" / "others.md").read_text()
SECTIONS = dict(re.findall(r"^### (.+?)\n(.*?)(?=^##|\Z)", PAGE, re.S | re.M))
RNG = np.random.default_rng(0)
GROUPS = [RNG.normal(size=10), RNG.normal(size=9), RNG.normal(size=12)]
ROWS = sum(map(len, GROUPS))
WANTED = [bestofk.advantages(group, "max@8") for group in GROUPS]
"""Of each group by itself; in a batch every prompt counts the same, whatever its size."""
SHARED = [wanted * ROWS / (3 * len(wanted)) for wanted in WANTED]


def stand_in(monkeypatch, **modules):
    """Host modules that have just these names."""
    for path, names in modules.items():
        parts = path.split("__")
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            if name not in sys.modules:
                monkeypatch.setitem(sys.modules, name, ModuleType(name))
            if end > 1:
                parent = sys.modules[".".join(parts[: end - 1])]
                monkeypatch.setattr(parent, parts[end - 1], sys.modules[name], raising=False)
        for key, value in names.items():
            monkeypatch.setattr(sys.modules[".".join(parts)], key, value, raising=False)


def ran(section, monkeypatch, **modules):
    """The section's Python, with host modules that have just these names."""
    stand_in(monkeypatch, **modules)
    code = re.findall(r"```python\n(.*?)```", SECTIONS[section], re.S)[0]
    scope: dict = {}
    exec(code, scope)
    return SimpleNamespace(**{k: v for k, v in scope.items() if not k.startswith("__")})


def test_every_section_names_the_source_that_was_read():
    assert len(SECTIONS) == 8
    assert all(text.strip().startswith("Read: ") for text in SECTIONS.values())


def example(name, monkeypatch):
    """A file of examples/, imported anew beside the stand-ins of its host."""
    monkeypatch.delitem(sys.modules, name, raising=False)
    module = import_module(name)
    monkeypatch.delitem(sys.modules, name)
    return module


def test_the_skyrl_example(monkeypatch):
    """Rows in any order, two that do not count, two that SkyRL added; on tokens of the response."""
    names: dict = {}
    stand_in(
        monkeypatch,
        skyrl__backends__skyrl_train__utils__ppo_utils={
            "AdvantageEstimatorRegistry": SimpleNamespace(register=names.__setitem__)
        },
        skyrl__train__config={"SkyRLTrainConfig": None},
        skyrl__train__entrypoints={"main_base": None},
    )
    assert example("skyrl_best_of_k", monkeypatch).register("max@8") == "bestofk:max@8"
    order = RNG.permutation(ROWS + 2)
    rewards = np.array([*np.concatenate(GROUPS), np.nan, 3.0])[order]
    uids = np.repeat(list("abcca"), [10, 9, 12, 1, 1])[order]
    mask = torch.ones(ROWS + 4, 3)
    mask[:, 2] = 0.0
    mask[np.flatnonzero(order == ROWS + 1)] = 0.0  # no response
    scores = torch.zeros(mask.shape, dtype=torch.float64)
    scores[:, 1] = torch.tensor([*rewards, 9.0, 9.0])

    def called(**settings):
        plain = {"advantage_batch_normalize": False, "loss_reduction": "seq_mean_token_sum_norm",
                 "dynamic_sampling": SimpleNamespace(type=None)}  # fmt: skip
        return names["bestofk:max@8"](
            token_level_rewards=scores, response_mask=mask, index=[*uids, "pad0", "pad1"],
            config=SimpleNamespace(**plain | settings), gamma=1.0,
        )  # fmt: skip

    made, returns = called()
    wanted = np.append(np.concatenate(SHARED) * (ROWS + 4) / ROWS, [0.0, 0.0])[order]
    np.testing.assert_allclose(made, np.append(wanted, [0.0, 0.0])[:, None] * mask.numpy())
    assert returns is made
    with pytest.warns(ObjectiveWarning, match="biased update"):
        called(loss_reduction="token_mean")
    with pytest.raises(ValueError, match="type=replace copies groups"):
        called(dynamic_sampling=SimpleNamespace(type="replace"))


def test_the_openrlhf_example(monkeypatch):
    """Two batches of rows that lie across groups; a KL penalty of none; its own run unchanged."""

    class Maker:
        def __init__(self, args):
            self.strategy, self.kl_ctl = SimpleNamespace(args=args), SimpleNamespace(value=0.0)

        def compute_advantages_and_returns(self, experiences):
            return "theirs"

        def get_cumulative_returns(self, reward, mask, gamma):
            return reward.flip(1).cumsum(1).flip(1) * mask

    def on_last_token(weight, coefficient, kl, action_mask):
        return torch.nn.functional.pad(weight[:, None], (action_mask.shape[1] - 1, 0))

    stand_in(
        monkeypatch,
        openrlhf={"utils": None},
        openrlhf__models__utils={"compute_reward": on_last_token},
        openrlhf__trainer__ppo_utils__experience_maker={"RemoteExperienceMaker": Maker},
        openrlhf__trainer__ppo_utils__length_penalty={"apply_length_penalties": lambda *_: None},
    )
    page = example("openrlhf_best_of_k", monkeypatch)
    rewards = torch.tensor(RNG.normal(size=30), dtype=torch.float64)
    rewards[3], rewards[12] = torch.nan, 50.0

    def arguments():
        return SimpleNamespace(
            algo=SimpleNamespace(advantage=SimpleNamespace(estimator="rloo")),
            actor=SimpleNamespace(loss_agg_mode="token-mean"),
            rollout=SimpleNamespace(n_samples_per_prompt=10),
            reward=SimpleNamespace(clip_range=(-10, 10)),
        )

    def batch(rows):
        return SimpleNamespace(
            rewards=rewards[rows], index=rows, prompts=[f"p{i // 10}" for i in rows],
            action_mask=torch.ones(len(rows), 4), kl="used", info={},
        )  # fmt: skip

    args = arguments()
    assert Maker(args).compute_advantages_and_returns([]) == "theirs"
    with pytest.raises(ValueError, match="max@16 needs more than 16 samples per prompt, got 10"):
        page.use(args, "max@16")
    page.use(args, "max@8")
    order = RNG.permutation(30).tolist()
    batches = [batch(order[:11]), batch(order[11:])]
    with pytest.warns(ObjectiveWarning, match="clip_range .* changes rewards"):
        made = Maker(args).compute_advantages_and_returns(batches)
    clipped = rewards.clamp(-10, 10).numpy().reshape(3, 10)
    first = bestofk.advantages(np.delete(clipped[0], 3), "max@8") * 10 / 9
    wanted = np.array(
        [*np.insert(first, 3, 0.0), *bestofk.advantages(clipped[1:], "max@8").ravel()]
    )
    found = torch.cat([each.advantages for each in made])
    np.testing.assert_allclose(found, np.repeat(wanted[order][:, None], 4, axis=1))
    mixed = batch(order)
    mixed.prompts[0] = "another"
    with (
        pytest.raises(ValueError, match="a group of the rollout has several prompts"),
        pytest.warns(ObjectiveWarning),
    ):
        Maker(args).compute_advantages_and_returns([mixed])
    args.actor.loss_agg_mode = "seq-mean-token-mean"
    with pytest.warns(ObjectiveWarning, match="seq-mean-token-mean divides by own lengths"):
        page.use(args, "max@8")


def test_rllm(monkeypatch):
    register = {"register_rllm_adv_estimator": lambda name: lambda function: function}
    page = ran("rLLM", monkeypatch, rllm__trainer__algorithms__advantage=register)
    for made in page.best_of_k(GROUPS, None, uids=[]):
        assert [len(each) for each in made] == [10, 9, 12]
        np.testing.assert_allclose(np.concatenate(made), np.concatenate(SHARED))


def test_prime_rl(monkeypatch):
    given: list = []
    base = {"Algorithm": object, "iter_trainable_traces": lambda episodes: enumerate(episodes)}
    page = ran(
        "prime-rl",
        monkeypatch,
        prime_rl__orchestrator__algo={"ALGORITHM_CLASSES": {}},
        prime_rl__orchestrator__algo__base=base,
        prime_rl__orchestrator__algo__routing={"assign_advantages": lambda _, a: given.append(a)},
    )
    group = [SimpleNamespace(reward=r) for r in GROUPS[0].tolist()]
    asyncio.run(page.algo.ALGORITHM_CLASSES["grpo"]().score_group(group))
    np.testing.assert_allclose(given, WANTED[0])


@pytest.mark.parametrize("section", ["Axolotl", "Unsloth"])
def test_trainers_made_from_trls(section, monkeypatch):
    GRPOTrainer = pytest.importorskip("trl").GRPOTrainer
    host = {"AxolotlGRPOTrainer": type("AxolotlGRPOTrainer", (GRPOTrainer,), {})}
    modules = {"axolotl__core__trainers__grpo__trainer": host, "unsloth": {}}
    page = ran(section, monkeypatch, **modules)
    assert issubclass(page.BestOfK, GRPOTrainer)
    assert page.BestOfK.training_objective == "max@8"


def test_slime(monkeypatch):
    page = ran("slime (and miles)", monkeypatch)
    samples = [
        SimpleNamespace(group_index=g, remove_sample=False, get_reward_value=lambda _, r=r: r)
        for g in (0, 2)
        for r in GROUPS[g].tolist()
    ]
    samples[1:1] = [
        SimpleNamespace(group_index=0, remove_sample=True, get_reward_value=lambda _: 9.0),
        SimpleNamespace(group_index=0, remove_sample=False, get_reward_value=lambda _: None),
    ]
    raw, made = page.best_of_k(None, samples)
    assert raw[1:3] == [9.0, None]
    first, last = (WANTED[g] * 24 / (2 * len(WANTED[g])) for g in (0, 2))
    np.testing.assert_allclose(made, [first[0], 0, 0, *first[1:], *last])


@pytest.mark.parametrize("width", [None, 3])
def test_nemo_rl(monkeypatch, width):
    page = ran("NeMo-RL", monkeypatch, nemo_rl__algorithms__grpo={})
    estimator = page.grpo._create_advantage_estimator(None)
    order = torch.randperm(31, generator=torch.Generator().manual_seed(0))
    ids = torch.repeat_interleave(torch.tensor([10, 9, 12]))[order]
    ids = ids if width is None else ids[:, None].expand(-1, width)
    rewards, mask = torch.tensor(np.concatenate(GROUPS))[order], torch.ones(31, 5)
    made = estimator.compute_advantage(ids, rewards, mask, repeated_batch=None)
    assert made.shape == mask.shape
    np.testing.assert_allclose(made[:, 4], np.concatenate(SHARED)[order])
    valid = torch.ones(31)
    valid[order == 0] = 0.0
    made = estimator.compute_advantage(ids, rewards, mask, valid_mask=valid)
    shorter = bestofk.advantages(GROUPS[0][1:], "max@8")
    np.testing.assert_allclose(made[torch.argsort(order)[:10], 0], [0, *shorter * 31 / 27])


def test_ms_swift(monkeypatch):
    page = ran("ms-swift", monkeypatch, swift__rlhf_trainers__grpo_trainer={})
    values = torch.tensor(RNG.normal(size=(20, 2)))
    values[0], values[11, 1] = torch.nan, torch.nan
    made, rewards = page.grpo_trainer.compute_advantages(
        rewards_per_func=values, reward_weights=torch.tensor([1.0, 2.0]), num_generations=10,
        advantage_estimator="grpo", scale_rewards="group",
    )  # fmt: skip
    assert rewards[0] == 0  # what the host shows
    assert rewards[11] == values[11, 0]
    nine = bestofk.advantages(rewards[1:10], "max@8") * 10 / 9
    np.testing.assert_allclose(made[:10], [0, *nine])
    np.testing.assert_allclose(made[10:], bestofk.advantages(rewards[10:], "max@8"))
    with pytest.raises(ValueError, match="kl_in_reward"):
        page.best_of_k(values, torch.ones(2), 10, kl_in_reward=True)


def test_tinker_cookbook(monkeypatch):
    theirs = {"compute_advantages": lambda groups: "centred"}
    page = ran("tinker-cookbook", monkeypatch, tinker_cookbook__rl__train=theirs)

    def group(rewards):
        return SimpleNamespace(get_total_rewards=lambda: rewards.tolist())

    made = page.train.compute_advantages([group(each) for each in GROUPS])
    for weights, wanted in zip(made, SHARED, strict=True):
        np.testing.assert_allclose(weights, wanted, rtol=1e-5)
    assert page.train.compute_advantages([group(GROUPS[0][:4])]) == "centred"
    with pytest.raises(ValueError, match="more than 8 samples"):
        page.train.compute_advantages([group(GROUPS[0][:4])] * 2)
    with pytest.warns(DroppedGroups, match="1 of 2 groups"):
        made = page.train.compute_advantages([group(GROUPS[0]), group(GROUPS[1][:5])])
    assert made[1].tolist() == [0.0] * 5
