"""`check=False` under jax.jit, jax.vmap, torch.func.vmap and torch.compile: the same weights."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch

from bestofk import advantages, max_at_k, objective
from bestofk.objectives import ObjectiveWarning, off_policy_max_at_k
from bestofk.objectives.catalog import CATALOG

RNG = np.random.default_rng(0)
G, N = 3, 5
REAL = RNG.random((G, N))
PASSED = (REAL > 0.5) * 1.0
LOGS = RNG.normal(size=(G, N)) * 0.4
OFF: list[tuple[str, dict[str, Any]]] = [
    ("max@2", {}), ("max@3:loo-1", {}), ("max@5:none", {}), ("mean", {}), ("max@1+2", {}),
    ("pass@2", {}), ("max@2", {"truncate": 0.2}), ("max@2", {"trust_region": (0.1, 0.2)}),
    ("max@2", {"self_normalise": True}), ("max@2", {"off_policy": "first-order"}),
    ("max@2", {"off_policy": "own-ratio"}), ("max@2", {"off_policy": "none"}),
]  # fmt: skip


def everything() -> list[str]:
    """Every objective of the catalog, as a string."""
    return [
        name.replace("M", "2") + ("@2" if entry.takes_k else "") + (f":{v}" if v else "")
        for name, variants in CATALOG.items()
        if name not in ("maj", "subsets")  # look at samples on the host
        for v, entry in variants.items()
    ] + ["max@1+3"]


def options(name: str) -> dict[str, Any]:
    named: dict[str, Any] = {}
    if name.startswith("lstat"):
        named["coefficients"] = (0.3, 0.7)
    if name.startswith("retry"):
        named["price"] = 0.1
    if "drop-easy" in name:
        named["accuracy_threshold"] = 0.5
    if "adaptive" in name:
        named["entropy_threshold"] = 1.5
    return named


def inputs(name: str) -> dict[str, np.ndarray]:
    """Arrays beside rewards: they are traced too."""
    if ":full" in name:
        return {"rng": np.random.default_rng(1).random((G, N))}
    if ":bootstrap" in name:
        return {"rng": np.random.default_rng(1).random((G, N, N))}
    if name.startswith("select"):
        scores = np.random.default_rng(2).integers(0, 3, (G, N)).astype(float)
        noise = {"rng": np.random.default_rng(1).random((G, N, 16))} if ":soft" in name else {}
        return {"scores": scores} | noise
    if ":tokens" in name:
        return {"tokens": np.random.default_rng(2).integers(1, 9, (G, N)).astype(float)}
    return {"entropy": np.arange(float(G))} if "adaptive" in name else {}


Case = tuple[str, np.ndarray, dict[str, Any], dict[str, Any]]
ON_CASES: list[Case] = [
    (name, PASSED if objective(name, **{k: v for k, v in options(name).items()
     if k != "entropy_threshold"}).terms[0].entry.zero_one else REAL, inputs(name), options(name))
    for name in everything()
]  # fmt: skip
OFF_CASES: list[Case] = [
    (name, PASSED if "pass" in name else REAL, {"log_ratio": LOGS}, named) for name, named in OFF
]


def function(case: Case) -> Callable[..., Any]:
    name, _, arrays, named = case
    keys = list(arrays)
    return lambda rewards, *given: advantages(
        rewards, name, check=False, **dict(zip(keys, given)), **named
    )


def expected(case: Case) -> np.ndarray:
    name, rewards, arrays, named = case
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ObjectiveWarning)
        return advantages(rewards, name, **arrays, **named)


def agree(cases: list[Case], found: list[Any]) -> None:
    for case, got in zip(cases, found, strict=True):
        np.testing.assert_allclose(
            np.asarray(got), expected(case), atol=1e-12, err_msg=f"{case[0]} {case[3]}"
        )


def arrays_of(case: Case, make: Callable[[np.ndarray], Any]) -> list[Any]:
    return [make(case[1]), *(make(value) for value in case[2].values())]


@pytest.fixture(autouse=True, scope="module")
def x64():
    before = jax.config.read("jax_enable_x64")
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


A_FEW = ("max@2", "pass@2:loo-1", "passk-training@2", "tailrl", "median@2")
FEW_CASES = [case for case in ON_CASES if case[0] in A_FEW] + OFF_CASES[:2]


ALL = pytest.mark.parametrize(
    "cases",
    [
        pytest.param(FEW_CASES, id="a few"),
        pytest.param(ON_CASES, id="on policy", marks=pytest.mark.slow),
        pytest.param(OFF_CASES, id="off policy", marks=pytest.mark.slow),
    ],
)


@ALL
@pytest.mark.parametrize("mapped", [lambda call: call, jax.vmap], ids=["jit", "jit of vmap"])
def test_jax(cases, mapped):
    """In one program: one by one, every operation of each would be compiled."""
    given = [arrays_of(case, jax.numpy.asarray) for case in cases]
    whole = jax.jit(lambda all_: [mapped(function(case))(*one) for case, one in zip(cases, all_)])
    agree(cases, whole(given))


@ALL
def test_torch_vmap(cases):
    agree(
        cases, [torch.func.vmap(function(case))(*arrays_of(case, torch.tensor)) for case in cases]
    )


def compiled(cases: list[Case], backend: str) -> list[Any]:
    found = []
    for case in cases:
        torch._dynamo.reset()
        call = torch.compile(function(case), fullgraph=True, backend=backend)
        found.append(call(*arrays_of(case, torch.tensor)))
    return found


lru_cache_note = pytest.mark.filterwarnings("ignore:Dynamo detected a call to a")


@ALL
@lru_cache_note
def test_torch_compile_without_a_graph_break(cases):
    agree(cases, compiled(cases, "eager"))


@pytest.mark.slow
@lru_cache_note
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_torch_compile_with_its_own_compiler():
    chosen = [case for case in ON_CASES if case[0] in ("max@2", "passk-training@2", "min@2")]
    agree(chosen, compiled(chosen, "inductor"))
    agree(OFF_CASES[:1], compiled(OFF_CASES[:1], "inductor"))


@lru_cache_note
def test_one_compiled_function_takes_groups_of_several_sizes():
    torch._dynamo.reset()
    goal = objective("max@2")
    call = torch.compile(
        lambda rewards: goal(rewards, check=False), fullgraph=True, backend="eager"
    )
    for shape in ((2, 4), (7, 4), (7, 6), (3, 9)):
        rewards = np.random.default_rng(shape[1]).random(shape)
        np.testing.assert_allclose(call(torch.tensor(rewards)).numpy(), goal(rewards), atol=1e-12)


def test_the_unchecked_call_is_the_checked_one():
    for case in ON_CASES + OFF_CASES:
        np.testing.assert_allclose(function(case)(*arrays_of(case, np.asarray)), expected(case))


@lru_cache_note
def test_estimates_are_traced_too():
    """By jit, vmap and compile; the off-policy value with its gradient."""
    wanted = max_at_k(REAL, 3), off_policy_max_at_k(REAL, LOGS, 3)

    def both(rewards: Any, logs: Any) -> Any:
        return (
            max_at_k(rewards, 3, check=False),
            off_policy_max_at_k(rewards, logs, 3, check=False),
        )

    given = [torch.tensor(REAL), torch.tensor(LOGS)]
    torch._dynamo.reset()
    for found in (
        jax.jit(both)(*map(jax.numpy.asarray, (REAL, LOGS))),
        jax.jit(jax.vmap(both))(*map(jax.numpy.asarray, (REAL, LOGS))),
        torch.func.vmap(both)(*given),
        torch.compile(both, fullgraph=True, backend="eager")(*given),
    ):
        for got, want in zip(found, wanted, strict=True):
            np.testing.assert_allclose(np.asarray(got), want, atol=1e-12)
    slope = jax.jit(jax.grad(lambda logs: both(jax.numpy.asarray(REAL), logs)[1].sum()))(LOGS)
    np.testing.assert_allclose(
        N * np.asarray(slope), advantages(REAL, "max@3:none", log_ratio=LOGS), atol=1e-12
    )


@lru_cache_note
def test_the_recurrence_is_compiled_as_one_step_whatever_n():
    """JAX scans and PyTorch calls an operator: the program does not grow with n."""
    call = function(("max@4", REAL, {"log_ratio": LOGS}, {}))
    lines = []
    for n in (16, 64):
        rows = [np.random.default_rng(n).random((2, n)) for _ in range(2)]
        made = jax.make_jaxpr(call)(*map(jax.numpy.asarray, rows))
        lines.append(len(str(made).splitlines()))
        torch._dynamo.reset()
        graph = torch._dynamo.explain(call)(*map(torch.tensor, rows))
        assert graph.graph_break_count == 0
        lines.append(graph.op_count)
    assert lines[0] == lines[2]
    assert lines[1] == lines[3] < 50


def test_what_cannot_be_traced_says_so():
    with pytest.raises(ValueError, match="groups= and live="):
        advantages([1.0, 0.0, 0.0], "max@2", live=[True] * 3, check=False)
    with pytest.raises(ValueError, match="entropy_threshold="):
        advantages(REAL, "passk-training@2:adaptive", entropy=np.arange(3.0), check=False)
    with pytest.raises(ValueError, match="more than 5 samples"):
        advantages(REAL, "max@5", check=False)
    with pytest.raises(ValueError, match=r"one uniform number per draw, \(3, 5\)"):
        advantages(REAL, "passk-training@2:full", rng=np.zeros((3, 4)))


def test_random_numbers_as_an_array_are_those_of_a_generator():
    name = "passk-training@2:full"
    drawn = np.random.default_rng(7).random((G, N))
    np.testing.assert_array_equal(
        advantages(REAL, name, rng=drawn), advantages(REAL, name, rng=np.random.default_rng(7))
    )
