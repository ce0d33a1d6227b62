"""NumPy, PyTorch and JAX agree, keep their device and dtype, and differentiate."""

from typing import Any

import jax
import numpy as np
import pytest
import torch

from bestofk import advantages, max_at_k, objective, pass_at_k
from bestofk.objectives import (
    clipped_advantages,
    l_statistic_at_k,
    max_at_k_curve,
    off_policy_max_at_k,
)

RNG = np.random.default_rng(0)
REWARDS = RNG.random((5, 9))
PASSED = (REWARDS > 0.6) * 1.0
LOGS = RNG.normal(size=(5, 9)) * 0.5
NAN = np.where(RNG.random((5, 9)) < 0.15, np.nan, REWARDS)

REAL = ["max@4", "max@4:loo", "max@9:loo-1", "max@4:none", "max@4:zscore", "mean", "grpo",
        "dr-grpo", "reinforce", "passk-training@4", "passk-training@4:full",
        "passk-training@4:bootstrap",
        "bon-max-mean", "bon-max-second", "tailrl", "rs-grpo", "top2@4", "bottom2@4", "median@4",
        "min@4", "max@1+4", "max@4..1", "passk-training@4:adaptive"]  # fmt: skip
BINARY = ["pass@4", "maxrl", "passk-training@4:exceeding", "passk-training@4:combination"]


@pytest.fixture(autouse=True, scope="module")
def x64():
    before = jax.config.read("jax_enable_x64")
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def to(library: str, values: np.ndarray) -> Any:
    return torch.from_numpy(values.copy()) if library == "torch" else jax.numpy.asarray(values)


# in JAX a few: every objective goes through it traced, in test_tracing.py
@pytest.mark.parametrize(
    ("library", "name"),
    [("torch", name) for name in REAL + BINARY]
    + [("jax", name) for name in ("max@4", "grpo", "passk-training@4:full", "median@4", "pass@4")],
)
def test_on_policy_advantages_agree(library, name):
    rewards = PASSED if name in BINARY else REWARDS
    inputs: dict[str, Any] = {"rng": 3, "entropy": np.arange(5.0), "progress": 0.4}
    expected = advantages(rewards, name, **inputs)
    got = advantages(to(library, rewards), name, **inputs)
    assert type(got).__module__.startswith(library)
    np.testing.assert_allclose(np.asarray(got), expected, atol=1e-12)


@pytest.mark.parametrize("library", ["torch", "jax"])
@pytest.mark.parametrize("form", ["exact", "first-order", "own-ratio", "none"])
def test_off_policy_advantages_agree(library, form):
    names = ["max@1+4:loo-1", "max@4", "max@9:none"]
    for name in names if library == "torch" else names[:1]:  # JAX compiles for every k
        expected = advantages(REWARDS, name, log_ratio=LOGS, off_policy=form, truncate=0.4)
        got = advantages(
            to(library, REWARDS), name, log_ratio=to(library, LOGS), off_policy=form, truncate=0.4
        )
        np.testing.assert_allclose(np.asarray(got), expected, atol=1e-12)


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_estimates_and_ragged_groups_agree(library):
    np.testing.assert_allclose(
        np.asarray(max_at_k(to(library, NAN), 3)), max_at_k(NAN, 3), atol=1e-12
    )
    np.testing.assert_allclose(
        np.asarray(max_at_k_curve(to(library, REWARDS))), max_at_k_curve(REWARDS), atol=1e-12
    )
    np.testing.assert_allclose(
        np.asarray(pass_at_k(to(library, PASSED), 3)), pass_at_k(PASSED, 3), atol=1e-12
    )
    np.testing.assert_allclose(
        np.asarray(l_statistic_at_k(to(library, REWARDS), 4, "top2")),
        l_statistic_at_k(REWARDS, 4, "top2"),
        atol=1e-12,
    )
    ids = RNG.permutation(np.repeat(np.arange(5), 9))
    flat = NAN.reshape(-1)
    given: list[dict[str, Any]] = [{}, {"log_ratio": LOGS.reshape(-1)}]
    for extra in given if library == "torch" else given[:1]:  # JAX compiles for every size
        there: dict[str, Any] = {key: to(library, value) for key, value in extra.items()}
        got = advantages(to(library, flat), "max@3", groups=ids, **there)
        expected = advantages(flat, "max@3", groups=ids, **extra)
        np.testing.assert_allclose(np.asarray(got), expected, atol=1e-12)


def slope(library: str, function: Any, at: np.ndarray) -> np.ndarray:
    """The gradient of a sum, by the library's own autograd."""
    if library == "jax":
        return np.asarray(jax.grad(lambda x: function(x).sum())(jax.numpy.asarray(at)))
    x = torch.from_numpy(at.copy()).requires_grad_()
    return torch.autograd.grad(function(x).sum(), x)[0].numpy()


@pytest.mark.parametrize("library", ["torch", "jax"])
@pytest.mark.parametrize("check", [True, False])
def test_a_loss_sees_advantages_as_numbers(library, check):
    """d/d log π of A log π is A, though rewards, ratios and other inputs move with log π too."""
    inputs = {"rng": 3, "progress": 0.4, "entropy_threshold": 0.1, "check": check}
    for name in ("max@4", "rs-grpo", "passk-training@4:full", "passk-training@4:adaptive"):

        def given(x, name=name):
            rewards = x * 0.5 + to(library, REWARDS)
            return advantages(rewards, name, entropy=x.mean(-1), **inputs)

        plain = np.asarray(given(to(library, LOGS)))
        got = slope(library, lambda x, given=given: given(x) * x, LOGS)
        np.testing.assert_allclose(got, plain, atol=1e-12, err_msg=name)
    for form in ({}, {"self_normalise": True}, {"truncate": 0.1}, {"trust_region": 0.3},
                 {"off_policy": "first-order"}, {"off_policy": "own-ratio"}):  # fmt: skip

        def given(x, form=form):
            rewards = x * 0.5 + to(library, REWARDS)
            return advantages(rewards, "max@4", log_ratio=x, check=check, **form)

        plain = np.asarray(given(to(library, LOGS)))
        got = slope(library, lambda x, given=given: given(x) * x, LOGS)
        np.testing.assert_allclose(got, plain, atol=1e-12, err_msg=str(form))

    def clipped(x):
        return clipped_advantages(x, x, 0.2, 0.3, reference_log_ratio=x, kl=0.1)

    got = slope(library, lambda x: clipped(x) * x, LOGS)
    np.testing.assert_allclose(got, np.asarray(clipped(to(library, LOGS))), atol=1e-12)


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_estimates_are_differentiable(library):
    """In the rewards: how often the sample is the best of a k-subset."""
    got = slope(library, lambda x: max_at_k(x, 2), np.array([0.0, 0.5, 1.0]))
    np.testing.assert_allclose(got, [0, 1 / 3, 2 / 3], atol=1e-12)
    curve = slope(library, lambda x: max_at_k_curve(x), np.array([0.0, 0.5, 1.0]))
    np.testing.assert_allclose(curve, [1 / 3, 1 / 3 + 1 / 3, 1 / 3 + 2 / 3 + 1], atol=1e-12)


def test_jax_differentiates_the_value():
    rewards, logs = to("jax", REWARDS), to("jax", LOGS)
    slope = jax.grad(lambda x: off_policy_max_at_k(rewards, x, 4).sum())(logs)
    expected = advantages(REWARDS, "max@4:none", log_ratio=LOGS)
    np.testing.assert_allclose(9 * np.asarray(slope), expected, atol=1e-11)


def test_jax_in_32_bits_is_computed_in_float64_and_only_tracing_needs_x64():
    jax.config.update("jax_enable_x64", False)
    try:
        rewards, logs = (jax.numpy.asarray(values) for values in (REWARDS, LOGS))
        assert rewards.dtype == "float32"
        for k in (1, 8):
            got = advantages(rewards, f"max@{k}:loo-1", log_ratio=logs)
            exact = advantages(
                np.asarray(rewards, np.float64), f"max@{k}:loo-1", log_ratio=np.asarray(logs, float)
            )
            assert isinstance(got, jax.Array)
            np.testing.assert_array_equal(got, exact.astype(np.float32))
        assert max_at_k(rewards, 2).dtype == "float32"
        with pytest.raises(
            ValueError, match=r"jit, vmap and grad .*jax_enable_x64.*outside of them"
        ):
            jax.jit(lambda values: advantages(values, "max@2", check=False))(rewards)
    finally:
        jax.config.update("jax_enable_x64", True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_torch_dtypes_come_back_and_inside_is_float64(dtype):
    rewards = torch.tensor([[1.0, 0.0, 0.5, 0.25]], dtype=dtype)
    got = advantages(rewards, "max@2")
    assert got.dtype == dtype
    exact = advantages(np.array([[1.0, 0.0, 0.5, 0.25]]), "max@2")
    assert torch.equal(got, torch.from_numpy(exact).to(dtype))
    assert max_at_k(rewards, 2).dtype == dtype


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.int64, torch.uint8])
def test_torch_integers_become_float64(dtype):
    got = advantages(torch.tensor([1, 0, 0, 0], dtype=dtype), "pass@2")
    assert got.dtype == torch.float64
    np.testing.assert_allclose(got.numpy(), advantages([1, 0, 0, 0], "pass@2"))


@pytest.mark.parametrize("make", [np.array, torch.tensor, jax.numpy.asarray])
def test_integers_that_float64_does_not_hold_are_an_error(make):
    for value in (2**53 + 1, -(2**53) - 1, -(2**63)):
        with pytest.raises(ValueError, match=r"rewards has integers above 2\^53"):
            advantages(make([value, 0, 1]), "mean")
    assert float(max_at_k(make([2**53, 0]), 2)) == 2**53
    mapped = torch.func.vmap(lambda row: max_at_k(row, 1, check=False))(torch.tensor([[0, 1]]))
    assert mapped.tolist() == [0.5]  # traced integers are not looked at


def test_numpy_floats_come_back():
    for dtype in (np.float16, np.float32, np.float64):
        assert advantages(np.array([1, 0, 0], dtype), "max@2").dtype == dtype
        assert pass_at_k(np.array([1, 0, 0], dtype), 2).dtype == dtype


def test_inputs_are_left_alone_and_weights_carry_no_graph():
    rewards = torch.tensor([1.0, 0.0, 0.0], requires_grad=True)
    logs = torch.zeros(3, requires_grad=True)
    assert not advantages(rewards, "max@2", log_ratio=logs).requires_grad
    values = np.array([0.3, 0.1, 0.9])
    before = values.copy()
    for name in ("max@2", "reinforce", "grpo", "max@3:loo-1"):
        got = objective(name)(values)
        got += 1.0
        np.testing.assert_array_equal(values, before)


def test_read_only_and_strided_arrays_work():
    base = np.random.default_rng(1).random((8, 6))
    base.setflags(write=False)
    np.testing.assert_allclose(
        advantages(base[::2, ::-1], "max@2"), advantages(base[::2], "max@2")[:, ::-1]
    )
    tensor = torch.from_numpy(base.copy()).T
    np.testing.assert_allclose(
        advantages(tensor, "max@2").numpy(), advantages(base.T, "max@2"), atol=1e-12
    )


@pytest.mark.gpu
@pytest.mark.parametrize("name", REAL + BINARY)
def test_cuda_agrees(name):
    rewards = PASSED if name in BINARY else REWARDS
    inputs: dict[str, Any] = {"rng": 3, "entropy": np.arange(5.0), "progress": 0.4}
    got = advantages(torch.from_numpy(rewards).cuda(), name, **inputs)
    assert got.device.type == "cuda"
    np.testing.assert_allclose(got.cpu().numpy(), advantages(rewards, name, **inputs), atol=1e-12)


@pytest.mark.gpu
def test_cuda_off_policy_agrees():
    for name in ("max@4", "max@4:loo-1", "max@9:none"):
        rewards, logs = torch.from_numpy(REWARDS).cuda(), torch.from_numpy(LOGS).cuda()
        got = advantages(rewards, name, log_ratio=logs)
        expected = advantages(REWARDS, name, log_ratio=LOGS)
        np.testing.assert_allclose(got.cpu().numpy(), expected, atol=1e-12)
