"""The thin layer between our formulas and the caller's array library (NumPy, PyTorch, JAX, CuPy).

Everything in this room computes in float64 on the caller's device and hands back the caller's
floating dtype. Only what the array API standard lacks is written per library here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from array_api_compat import array_namespace, device, is_jax_array, is_numpy_array, is_torch_array

Array: TypeAlias = Any
"""An array of any supported library."""


def as_float64(
    values: Any, name: str, *, keep_gradient: bool = False
) -> tuple[Array, Callable[[Array], Array]]:
    """`values` as a float64 array, and the way back to the caller's dtype.

    Booleans and integers come back as float64. Plain lists become NumPy arrays. JAX arrays in its
    32-bit mode are computed on the host, in float64.

    Args:
        values: real numbers.
        name: of the argument, for errors.
        keep_gradient: True for estimates, which may be differentiated. Advantages are numbers that
            multiply ∇log π, so what they are made of is cut from the autograd graph.

    Raises:
        ValueError: values that are not real numbers, or integers that float64 does not hold; JAX
            in its 32-bit mode while it traces.
    """
    if isinstance(values, np.ma.MaskedArray):
        is_scored = name in ("rewards", "correct")  # where NaN means: not live
        filled = f"pass {name}.filled(numpy.nan), or" if is_scored else "pass"
        raise ValueError(
            f"{name} is a masked array, whose mask would be lost: {filled} the data and live=~mask"
        )
    if not is_array(values):
        try:
            values = np.asarray(values)
        except ValueError as error:
            raise ValueError(
                f"{name} must be rectangular, shape (..., n); for groups of different size pass "
                "one row of samples and groups= with a group id per sample"
            ) from error
    if is_numpy_array(values):
        if values.dtype.kind not in "biuf":
            raise ValueError(f"{name} must be real numbers, got dtype {values.dtype}")
        _check_integers(values, name)
        dtype = values.dtype if values.dtype.kind == "f" else np.dtype(np.float64)
        if dtype == np.float64:
            return values.astype(np.float64, copy=False), _same
        return values.astype(np.float64), partial(_narrowed, dtype=dtype)
    xp = array_namespace(values)
    if not keep_gradient:
        values = without_gradient(values)
    if xp.isdtype(values.dtype, "complex floating"):
        raise ValueError(f"{name} must be real numbers, got dtype {values.dtype}")
    floating = xp.isdtype(values.dtype, "real floating")
    target = values.dtype if floating else xp.float64
    _check_integers(values, name)
    if is_jax_array(values) and (host := _on_the_host(values)) is not None:
        return host, lambda result: xp.asarray(result, dtype=target)
    wide = xp.astype(values, xp.float64, copy=False)
    return wide, (_same if target == xp.float64 else lambda result: xp.astype(result, target))


def _check_integers(values: Array, name: str) -> None:
    """Raise for integers that float64 does not hold."""
    xp = array_namespace(values)
    wide = values.dtype in (xp.int64, xp.uint64)
    if wide and _all((values <= 2**53) & (values >= -(2**53))) is False:
        raise ValueError(
            f"{name} has integers above 2^53, which float64 does not tell apart: subtract a "
            "constant, or divide"
        )


def _narrowed(result: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    with np.errstate(over="ignore"):  # what overflows is looked at by `fits`
        return result.astype(dtype)


def _same(result: Array) -> Array:
    return result


def fits(result: Array, wide: Array) -> Array:
    """Advantages in the caller's dtype; an error where float16 turned them infinite."""
    xp = array_namespace(result)
    if result.dtype == xp.float64 or float(xp.finfo(result.dtype).max) > 1e30:
        return result
    if bool(xp.any(xp.isinf(result))):
        raise ValueError(
            f"advantages up to {float(xp.max(xp.abs(wide))):.3g} do not fit into {result.dtype}: "
            "pass the rewards as float32 or float64"
        )
    return result


def _on_the_host(values: Array) -> np.ndarray | None:
    """The numbers of a JAX array in float64, where JAX itself has none; None where it does."""
    import jax

    if jax.config.read("jax_enable_x64"):
        return None
    if _traced(values):
        raise ValueError(
            "jit, vmap and grad of JAX need 64-bit floats for these formulas: "
            "jax.config.update('jax_enable_x64', True), or call this outside of them"
        )
    return np.asarray(values, np.float64)


def _traced(values: Array) -> bool:
    """Whether this is a JAX array without numbers: inside jit, vmap or grad."""
    import jax

    return isinstance(values, jax.core.Tracer)


def _all(holds: Array) -> bool | None:
    """Whether all are True; None where they may not be looked at: JAX traces, or PyTorch compiles
    or maps."""
    if is_jax_array(holds) and _traced(holds):
        return None
    if is_torch_array(holds):
        import torch

        if torch.compiler.is_compiling():
            return None
        try:
            return bool(holds.all())
        except RuntimeError:  # a batched tensor has no one truth value
            return None
    return bool(array_namespace(holds).all(holds))


def is_array(values: Any) -> bool:
    """Whether this is an array of a supported library, not a list or a number."""
    return (
        is_numpy_array(values)
        or is_torch_array(values)
        or is_jax_array(values)
        or (hasattr(values, "__array_namespace__"))
    )


def as_numpy(values: Any) -> np.ndarray:
    """Ids and masks, which are looked at on the host."""
    if is_torch_array(values):
        values = values.detach().cpu().numpy()
    elif hasattr(values, "get") and hasattr(values, "__cuda_array_interface__"):  # CuPy
        values = values.get()
    return np.asarray(values)


def live_mask(live: Any, shape: Sequence[int], of: str = "rewards") -> np.ndarray:
    """`live` as booleans on the host, the shape of what it marks."""
    mask = as_numpy(live)
    if mask.shape != tuple(shape):
        raise ValueError(f"live must have the shape of {of}, {tuple(shape)}, got {mask.shape}")
    if mask.dtype == bool:
        return mask
    odd = [value for value in mask.reshape(-1).tolist() if value not in (0, 1)]
    if odd:
        raise ValueError(f"live must be True (or 1) or False (or 0) per sample, got {odd[0]!r}")
    return mask.astype(bool)


def constant(table: np.ndarray, like: Array) -> Array:
    """A host table as an array beside `like`."""
    if is_numpy_array(like):
        return table
    if is_torch_array(table):  # torch.compile makes tensors of our tables
        return table.to(like.device)
    xp = array_namespace(like)
    return xp.asarray(table.copy(), device=device(like))


def without_gradient(values: Array) -> Array:
    """The same numbers, cut from the autograd graph."""
    if is_torch_array(values):
        return values.detach()
    if is_jax_array(values):
        import jax

        return jax.lax.stop_gradient(values)
    return values


def sort_with_order(values: Array) -> tuple[Array, Array]:
    """Ascending along the last axis, and the order that does it (for `by_order` and `unsort`)."""
    if is_torch_array(values):
        narrow = values.float() if values.is_cuda and _fits_float32(values) else values
        ordered, order = narrow.sort(dim=-1)
        return ordered.to(values.dtype), order
    if is_numpy_array(values):  # flat positions: twice as fast as the *_along_axis functions
        starts = np.arange(0, values.size, values.shape[-1])
        flat = np.argsort(values, axis=-1) + starts.reshape((*values.shape[:-1], 1))
        return np.take(values, flat), flat
    order = array_namespace(values).argsort(values, axis=-1)
    return by_order(values, order), order


def _fits_float32(values: Array) -> bool:
    """Whether float32 holds the tensor exactly: such values sort in half the time on a GPU."""
    return bool(_all(values.float() == values))


def by_order(values: Array, order: Array) -> Array:
    """Values listed by rank, given the order of `sort_with_order`."""
    if is_numpy_array(values):
        return np.take(values, order)
    return array_namespace(values).take_along_axis(values, order, axis=-1)


def unsort(ordered: Array, order: Array) -> Array:
    """Put values listed by rank back where their samples stand."""
    if is_numpy_array(ordered):
        result = np.empty(ordered.shape)
        result.reshape(-1)[order.reshape(-1)] = ordered.reshape(-1)
        return result
    if is_torch_array(ordered):
        return ordered.new_zeros(()).expand_as(ordered).scatter(-1, order, ordered)
    xp = array_namespace(ordered)
    return xp.take_along_axis(ordered, xp.argsort(order, axis=-1), axis=-1)


def cumulative_sum(values: Array) -> Array:
    """Running sum along the last axis."""
    if _short_on_gpu(values):
        return values @ values.new_ones((values.shape[-1],) * 2).triu_()
    return array_namespace(values).cumulative_sum(values, axis=-1)


def sums_above(values: Array) -> Array:
    """Σ_{j≥i} and a last 0, (..., n-1) → (..., n): summed from the end, not from the total."""
    if _short_on_gpu(values):
        return values @ values.new_ones((values.shape[-1], values.shape[-1] + 1)).tril_()
    xp = array_namespace(values)
    zero = xp.zeros((*values.shape[:-1], 1), dtype=values.dtype, device=device(values))
    from_the_end = xp.flip(cumulative_sum(xp.flip(values, axis=-1)), axis=-1)
    return xp.concat([from_the_end, zero], axis=-1)


def cumulative_max(values: Array) -> Array:
    """Running maximum along the last axis, by doubling: the array API has none."""
    xp = array_namespace(values)
    step = 1
    while step < values.shape[-1]:
        later = xp.maximum(values[..., step:], values[..., :-step])
        values = xp.concat([values[..., :step], later], axis=-1)
        step *= 2
    return values


LARGEST = 1e150
"""Rewards up to this size: their squares and sums fit into float64."""


def all_good(values: Array) -> bool:
    """Whether every value is a number of at most LARGEST."""
    xp = array_namespace(values)
    return not values.shape[0] or 0 in values.shape or bool(xp.max(xp.abs(values)) <= LARGEST)


def scan(
    step: Callable[[Any, Any], tuple[Any, Any]],
    state: tuple[Array, ...],
    inputs: Sequence[Any],
    *,
    reverse: bool = False,
) -> tuple[Any, Sequence[Any]]:
    """The last state, and what `step(state, inputs at i)` gave for every i, in order of i.

    While JAX traces, it compiles the step once; elsewhere this is a loop. What the steps gave is a
    tuple of sequences, which `stacked` turns into arrays.
    """
    if is_jax_array(state[0]) and _traced(state[0]):
        import jax

        arrays = tuple(stacked(each) for each in inputs)
        return jax.lax.scan(step, state, arrays, reverse=reverse)
    results = []
    order = range(len(inputs[0]))
    for i in reversed(order) if reverse else order:
        state, result = step(state, tuple(each[i] for each in inputs))
        results.append(result)
    return state, tuple(zip(*(reversed(results) if reverse else results)))


def stacked(values: Any) -> Array:
    """Arrays of one shape as one array; an array as it is."""
    return array_namespace(values[0]).stack(list(values)) if isinstance(values, tuple) else values


def _short_on_gpu(values: Array) -> bool:
    """Along a short axis a triangular product is much faster on a GPU than a running sum."""
    return is_torch_array(values) and values.is_cuda and values.shape[-1] <= 128


BLOCK = 1 << 16
"""Numbers per block: small enough for the cache, large enough to hide the call."""


def by_blocks(function: Callable[[Array], Array], values: Array) -> Array:
    """function(values) for a function of each row (groups, n) by itself.

    NumPy makes a pass over memory per operation; on blocks that stay in the cache a batch of many
    groups takes half the time.
    """
    if not is_numpy_array(values) or values.size < 2 * BLOCK:
        return function(values)
    rows = max(1, BLOCK // values.shape[-1])
    parts = [function(values[at : at + rows]) for at in range(0, values.shape[0], rows)]
    return np.concatenate(parts)


def positive_integer(value: Any, name: str) -> int:
    """`value` as an int ≥ 1; anything else is an error that names it."""
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if isinstance(value, bool | np.bool_) or number < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    return number
