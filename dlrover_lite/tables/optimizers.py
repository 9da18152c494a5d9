"""What a gradient does to values and optimizer state: SGD, Adagrad, lazy Adam, FTRL.

A row has ``dim`` float32 values and behind them ``dim`` for each state part; rows lie ``row_words`` from each other, values begin
``values_at`` words behind a row's beginning (``core.records``). Sources: Duchi et al. 2011 (Adagrad), Kingma and Ba 2015 (Adam;
"lazy": a row counts its own steps, and an absent row doesn't decay), McMahan et al. 2013 (FTRL-Proximal).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dlrover_lite.core.kernels.compile import kernel
from dlrover_lite.recipe.schema import Optimizer
from dlrover_lite.tables.optimizer_state import STATE_PARTS

SGD, ADAGRAD, ADAM, FTRL = 0, 1, 2, 3
KINDS = {"sgd": SGD, "adagrad": ADAGRAD, "adam": ADAM, "ftrl": FTRL}
_DEFAULT_EPSILON = {"adagrad": 1e-10, "adam": 1e-8}

LEARNING_RATE, EPSILON, BETA1, BETA2, L1, L2, BETA = range(7)


def hyperparameters(optimizer: Optimizer) -> NDArray[np.float32]:
    """Return the optimizer's numbers as the kernels take them, indexed by the constants above."""
    epsilon = optimizer.epsilon if optimizer.epsilon is not None else _DEFAULT_EPSILON.get(optimizer.use, 0.0)
    return np.array(
        [
            optimizer.learning_rate,
            epsilon,
            optimizer.beta1,
            optimizer.beta2,
            optimizer.l1,
            optimizer.l2,
            optimizer.beta,
        ],
        np.float32,
    )


def first_state(optimizer: Optimizer, values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the state before the first update of rows with these values [n, dim]: float32 [n, dim x parts], as ``init_state`` makes it."""
    n, dim = values.shape
    state = np.zeros((n, dim * STATE_PARTS[optimizer.use]), np.float32)
    if optimizer.use == "ftrl":
        hyper = hyperparameters(optimizer)
        scale = hyper[BETA] / hyper[LEARNING_RATE] + hyper[L2]
        state[:, :dim] = -values * scale - np.sign(values) * hyper[L1]
    return state


@kernel
def init_state(kind, hyper, floats, start, dim):  # type: ignore[no-untyped-def]
    """Set the state of a row before its first update, behind its values, which begin at ``floats[start]``: zeros; FTRL's z such that the
    weights it stands for are the values."""
    parts = np.uint64(0 if kind == SGD else (1 if kind == ADAGRAD else 2))
    for j in range(dim, dim + parts * dim):
        floats[start + j] = np.float32(0.0)
    if kind == FTRL:
        scale = hyper[BETA] / hyper[LEARNING_RATE] + hyper[L2]
        for j in range(dim):
            w = floats[start + j]
            floats[start + dim + j] = -w * scale - np.sign(w) * hyper[L1]


@kernel
def update_rows(  # type: ignore[no-untyped-def]
    kind, hyper, factor, floats, row_words, values_at, dim, rows, n, grads, first, steps
):
    """Apply gradients to rows ``rows[:n]`` of ``floats`` (flat): gradients one row after the other from ``grads[first]`` on (flat).

    Positions and counts are uint64 (numba then leaves out the check for negative indices, and the inner loops vectorise); many rows a
    call, since a call with this many arrays costs more than a row. ``factor`` scales the learning rate; ``steps[i]`` counts row i's
    updates, this one included (Adam).
    """
    base = hyper[LEARNING_RATE]
    lr = base * factor
    eps = hyper[EPSILON]
    one = np.float32(1.0)
    if kind == ADAGRAD:
        for i in range(n):
            value = rows[i] * row_words + values_at
            state = value + dim
            grad = first + i * dim
            for j in range(dim):
                g = grads[grad + j]
                s = floats[state + j] + g * g
                floats[state + j] = s
                floats[value + j] -= lr * g / (np.sqrt(s) + eps)
    elif kind == SGD:
        for i in range(n):
            value = rows[i] * row_words + values_at
            grad = first + i * dim
            for j in range(dim):
                floats[value + j] -= lr * grads[grad + j]
    elif kind == ADAM:
        b1 = hyper[BETA1]
        b2 = hyper[BETA2]
        for i in range(n):
            value = rows[i] * row_words + values_at
            start = value + dim
            second = start + dim
            grad = first + i * dim
            c1 = np.float32(1.0 / (1.0 - np.float64(b1) ** np.int64(steps[i])))
            c2 = np.float32(1.0 / (1.0 - np.float64(b2) ** np.int64(steps[i])))
            for j in range(dim):
                g = grads[grad + j]
                m = b1 * floats[start + j] + (one - b1) * g
                v = b2 * floats[second + j] + (one - b2) * g * g
                floats[start + j] = m
                floats[second + j] = v
                floats[value + j] -= lr * (m * c1) / (np.sqrt(v * c2) + eps)
    else:
        l1 = hyper[L1]
        for i in range(n):
            value = rows[i] * row_words + values_at
            start = value + dim
            second = start + dim
            grad = first + i * dim
            for j in range(dim):
                g = grads[grad + j]
                old = floats[second + j]
                new = old + g * g
                # The factor scales the step. In the rate it would rescale the weight itself, which z stands for in units of base.
                z = floats[start + j] + factor * g - (np.sqrt(new) - np.sqrt(old)) / base * floats[value + j]
                floats[start + j] = z
                floats[second + j] = new
                shrunk = max(np.float32(0.0), abs(z) - l1)
                rate = (hyper[BETA] + np.sqrt(new)) / base + hyper[L2]
                # rate is 0 only with beta = l2 = 0 and no gradient yet: then there is nothing to learn from
                floats[value + j] = -np.sign(z) * shrunk / rate if rate > 0 else np.float32(0.0)
