"""NumPy, PyTorch and JAX agree, keep their device and dtype, and differentiate."""

from typing import Any

import jax
import numpy as np
import pytest
import torch

from bestofk import advantages, max_at_k, objective, pass_at_k
from bestofk.objectives import (
    effective_sample_size,
    max_at_k_curve,
    off_policy_max_at_k,
    top_m_at_k,
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


@pytest.mark.parametrize("library", ["torch", "jax"])
@pytest.mark.parametrize("name", REAL + BINARY)
def test_on_policy_weights_agree(library, name):
    rewards = PASSED if name in BINARY else REWARDS
    inputs = {"rng": 3, "entropy": np.arange(5.0), "progress": 0.4}
    expected = advantages(rewards, name, **inputs)
    got = advantages(to(library, rewards), name, **inputs)
    assert type(got).__module__.startswith(library)
    np.testing.assert_allclose(np.asarray(got), expected, atol=1e-12)


@pytest.mark.parametrize("library", ["torch", "jax"])
@pytest.mark.parametrize("form", ["exact", "first-order", "own-ratio", "none"])
@pytest.mark.parametrize("name", ["max@4", "max@4:loo-1", "max@9:none", "mean", "max@1+4"])
def test_off_policy_weights_agree(library, form, name):
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
        np.asarray(top_m_at_k(to(library, REWARDS), 4, 2)), top_m_at_k(REWARDS, 4, 2), atol=1e-12
    )
    np.testing.assert_allclose(
        np.asarray(effective_sample_size(to(library, LOGS), 4)),
        effective_sample_size(LOGS, 4),
        atol=1e-12,
    )
    ids = RNG.permutation(np.repeat(np.arange(5), 9))
    flat = NAN.reshape(-1)
    for extra in ({}, {"log_ratio": LOGS.reshape(-1)}):
        there = {key: to(library, value) for key, value in extra.items()}
        got = advantages(to(library, flat), "max@3", groups=ids, **there)
        expected = advantages(flat, "max@3", groups=ids, **extra)
        np.testing.assert_allclose(np.asarray(got), expected, atol=1e-12)


def test_jax_differentiates_the_value():
    rewards, logs = to("jax", REWARDS), to("jax", LOGS)
    slope = jax.grad(lambda x: off_policy_max_at_k(rewards, x, 4).sum())(logs)
    expected = advantages(REWARDS, "max@4:none", log_ratio=LOGS)
    np.testing.assert_allclose(9 * np.asarray(slope), expected, atol=1e-11)


def test_jax_without_x64_is_refused_with_the_way_out():
    jax.config.update("jax_enable_x64", False)
    try:
        with pytest.raises(ValueError, match="jax_enable_x64"):
            advantages(jax.numpy.asarray([1.0, 0.0, 0.0]), "max@2")
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
    inputs = {"rng": 3, "entropy": np.arange(5.0), "progress": 0.4}
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
