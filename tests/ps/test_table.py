"""Tables of one dim against dicts, and optimizers against torch and their papers."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dlrover_lite.core.errors import JobError
from dlrover_lite.protocol.ps_messages import TableSpec
from dlrover_lite.ps.memory.arena import Arena
from dlrover_lite.ps.tables.table import TableGroup
from dlrover_lite.recipe.schema import Optimizer
from dlrover_lite.tables.hashing import initial_rows
from tests.ps.models import Reference, summed

RESERVE = 64 << 20
DIMS = (1, 3, 16, 17, 64)
OPTIMIZERS = {
    "sgd": Optimizer(use="sgd", learning_rate=0.1),
    "adagrad": Optimizer(use="adagrad", learning_rate=0.1),
    "adam": Optimizer(use="adam", learning_rate=0.01),
    "ftrl": Optimizer(use="ftrl", learning_rate=0.1, l1=0.02, l2=0.01),
}
EDGES = [0, 1, 2**63 - 1, 2**63, 2**64 - 1]


def specs(dim: int, tables: int = 1) -> list[TableSpec]:
    return [TableSpec(f"t{i}", dim, 0.05 * (i + 1)) for i in range(tables)]


def group(dim: int, optimizer: Optimizer = OPTIMIZERS["sgd"], tables: int = 1, seed: int = 5) -> TableGroup:
    return TableGroup(specs(dim, tables), optimizer, seed=seed, reserve_bytes=RESERVE)


def u64(keys: Sequence[int]) -> np.ndarray:
    return np.array(keys, np.uint64)


def counts(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def contents(tables: TableGroup) -> dict[tuple[int, int], list[float]]:
    """Every row by (table, key), from a scan in pieces; none may come twice."""
    found: dict[tuple[int, int], list[float]] = {}
    start = 0
    while start < tables.used:
        data, start = tables.scan(start, 7)
        for key, table, row in zip(data.ids.tolist(), data.tables.tolist(), data.values.tolist(), strict=True):
            assert (table, key) not in found
            found[table, key] = row
    assert len(found) == tables.rows
    return found


@pytest.mark.parametrize("dim", DIMS)
def test_unknown_keys_read_as_initial_values_without_making_rows(dim: int) -> None:
    tables = group(dim, tables=2)
    keys = u64([*EDGES, *range(300)])
    before = tables.bytes
    got = tables.gather(np.concatenate([keys, keys]), counts(len(keys), len(keys)))
    for i, spec in enumerate(specs(dim, 2)):
        expected = initial_rows(keys, table=spec.name, seed=5, dim=dim, scale=spec.init_scale)
        assert np.array_equal(got[i * len(keys) : (i + 1) * len(keys)], expected)
        assert np.abs(expected).max() <= spec.init_scale
    assert not np.array_equal(got[: len(keys)], got[len(keys) :] / 2)
    assert (tables.rows, tables.bytes) == (0, before)
    assert contents(tables) == {}


def test_initial_values_depend_on_the_seed_and_are_spread_out() -> None:
    keys = np.arange(20_000, dtype=np.uint64)
    rows = initial_rows(keys, table="t", seed=1, dim=4, scale=0.05)
    assert not np.array_equal(rows, initial_rows(keys, table="t", seed=2, dim=4, scale=0.05))
    np.testing.assert_allclose(rows.mean(0), 0, atol=0.002)
    np.testing.assert_allclose(rows.std(0), 0.05 / np.sqrt(3), rtol=0.02)
    assert np.abs(np.corrcoef(rows.T) - np.eye(4)).max() < 0.05


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("use", OPTIMIZERS)
def test_updates_of_every_optimizer_follow_the_reference(use: str, dim: int) -> None:
    random = np.random.default_rng(dim)
    tables, reference = group(dim, OPTIMIZERS[use], 3), Reference(specs(dim, 3), OPTIMIZERS[use], 5)
    pool = [*EDGES, *random.integers(0, 2**63, 40).tolist()]
    for _ in range(12):
        chosen = [random.choice(len(pool), random.integers(0, 30)) for _ in range(3)]
        keys = [[pool[i] for i in of_table] for of_table in chosen]
        grads = [random.normal(size=(len(of_table), dim)).astype(np.float32) for of_table in keys]
        factor = 1.0 if use == "ftrl" else float(random.uniform(0.2, 1.0))
        flat = u64([key for of_table in keys for key in of_table])
        tables.update(*summed(flat, counts(*map(len, keys)), np.concatenate(grads)), learning_rate_factor=factor)
        for t in range(3):
            reference.update(t, keys[t], grads[t], factor)
    assert contents(tables).keys() == {(t, key) for t in range(3) for key in reference.rows[t]}
    for t in range(3):
        got = tables.gather(u64(pool), counts(*[len(pool) if i == t else 0 for i in range(3)]))
        expected = [reference.value(t, key) for key in pool]
        np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-5)


def torch_steps(optimizer: torch.optim.Optimizer, weight: torch.Tensor, grads: list[torch.Tensor]) -> np.ndarray:
    for grad in grads:
        weight.grad = grad
        optimizer.step()
    return weight.detach().numpy()


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_adagrad_is_torchs_on_sparse_gradients() -> None:
    random = np.random.default_rng(0)
    tables = group(16, Optimizer(use="adagrad", learning_rate=0.05))
    weight = torch.nn.Parameter(torch.from_numpy(tables.gather(np.arange(50, dtype=np.uint64), counts(50))))
    grads = []
    for _ in range(30):
        keys = random.integers(0, 50, 40)
        values = random.normal(size=(40, 16)).astype(np.float32)
        at = torch.from_numpy(keys[None])
        grads.append(torch.sparse_coo_tensor(at, torch.from_numpy(values), (50, 16), check_invariants=True))
        tables.update(*summed(keys.astype(np.uint64), counts(40), values))
    expected = torch_steps(torch.optim.Adagrad([weight], 0.05), weight, grads)
    np.testing.assert_allclose(
        tables.gather(np.arange(50, dtype=np.uint64), counts(50)), expected, rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("use", ["sgd", "adam"])
def test_rows_in_every_step_go_as_in_torch(use: str) -> None:
    random = np.random.default_rng(1)
    tables = group(8, Optimizer(use=use, learning_rate=0.02))  # type: ignore[arg-type]
    keys = np.arange(20, dtype=np.uint64)
    weight = torch.nn.Parameter(torch.from_numpy(tables.gather(keys, counts(20))))
    theirs = torch.optim.SGD([weight], 0.02) if use == "sgd" else torch.optim.Adam([weight], 0.02)
    grads = [random.normal(size=(20, 8)).astype(np.float32) for _ in range(50)]
    for grad in grads:
        tables.update(keys, counts(20), grad)
    expected = torch_steps(theirs, weight, [torch.from_numpy(grad) for grad in grads])
    np.testing.assert_allclose(tables.gather(keys, counts(20)), expected, rtol=1e-4, atol=1e-5)


def test_lazy_adam_leaves_absent_rows_alone() -> None:
    tables = group(4, OPTIMIZERS["adam"])
    both, one = u64([1, 2]), u64([1])
    tables.update(both, counts(2), np.ones((2, 4), np.float32))
    resting = tables.gather(both, counts(2))[1].copy()
    for _ in range(5):
        tables.update(one, counts(1), np.ones((1, 4), np.float32))
    assert np.array_equal(tables.gather(both, counts(2))[1], resting)


@pytest.mark.parametrize("l1", [0.0, 0.1])
def test_ftrl_with_a_falling_rate_only_takes_smaller_steps(l1: float) -> None:
    """A schedule that ends at 0 must leave the weights where they are."""
    tables = group(8, Optimizer(use="ftrl", learning_rate=0.1, l1=l1))
    keys = np.arange(10, dtype=np.uint64)
    random = np.random.default_rng(2)
    for _ in range(20):
        tables.update(keys, counts(10), random.normal(1.0, 0.3, size=(10, 8)).astype(np.float32))
    before = tables.gather(keys, counts(10))
    grads = random.normal(1.0, 0.3, size=(10, 8)).astype(np.float32)
    steps = []
    for factor in (0.5, 1e-3, 0.0):
        tables.update(keys, counts(10), grads, learning_rate_factor=factor)
        after = tables.gather(keys, counts(10))
        steps.append(float(np.abs(after - before).max()))
        before = after
    # l1 is a pull of its own, per unit of accumulated gradient; without it no rate means no step
    assert steps[0] > steps[1] > 0
    assert steps[2] < (1e-6 if l1 == 0 else 5e-3)
    assert np.abs(before).max() > 0.1


def test_ftrl_without_regularisation_steps_by_the_rate() -> None:
    tables = group(3, Optimizer(use="ftrl", learning_rate=0.1))
    key, grad = u64([9]), np.array([[0.5, -1.0, 2.0]], np.float32)
    before = tables.gather(key, counts(1))
    tables.update(key, counts(1), grad, learning_rate_factor=0.25)
    expected = before - 0.25 * 0.1 * grad / (1.0 + np.abs(grad))
    np.testing.assert_allclose(tables.gather(key, counts(1)), expected, rtol=1e-5, atol=1e-7)


def test_ftrl_makes_weights_exactly_zero() -> None:
    tables = group(16, Optimizer(use="ftrl", learning_rate=0.1, l1=10.0))
    towards_zero = np.sign(tables.gather(u64([1]), counts(1)))
    tables.update(u64([1]), counts(1), towards_zero)
    assert np.array_equal(tables.gather(u64([1]), counts(1)), np.zeros((1, 16), np.float32))


def test_a_growing_table_loses_and_mixes_up_no_rows() -> None:
    """From the first index over several doublings: 200,000 rows of 2 tables whose keys are the same."""
    tables = group(1, tables=2)
    random = np.random.default_rng(3)
    keys = np.unique(random.integers(0, 2**64, 100_000, dtype=np.uint64))
    for piece in np.array_split(keys, 13):
        both = np.concatenate([piece, piece])
        # SGD with rate 0.1: the step tells which table and key it was meant for
        grads = np.concatenate([piece % np.uint64(1000), piece % np.uint64(1000) + np.uint64(5000)]).astype(np.float32)
        tables.update(both, counts(len(piece), len(piece)), grads[:, None])
    assert tables.rows == 2 * len(keys)
    assert tables.bytes > 2 * len(keys) * (8 + 4)
    got = tables.gather(np.concatenate([keys, keys]), counts(len(keys), len(keys)))[:, 0]
    for i, spec in enumerate(specs(1, 2)):
        steps = (keys % np.uint64(1000)).astype(np.float64) + 5000 * i
        start = initial_rows(keys, table=spec.name, seed=5, dim=1, scale=spec.init_scale)[:, 0]
        np.testing.assert_allclose(got[i * len(keys) : (i + 1) * len(keys)], start - 0.1 * steps, rtol=1e-5, atol=1e-4)
    data, following = tables.scan(0, 10**9)
    assert following == tables.used
    assert np.array_equal(np.sort(data.ids[data.tables == 0]), keys)
    assert np.array_equal(np.sort(data.ids[data.tables == 1]), keys)
    assert data.values.shape == (2 * len(keys), 1)


@st.composite
def histories(draw: st.DrawFn):
    """A dim, a number of tables, and updates of them as lists of keys a table."""
    tables = draw(st.integers(1, 3))
    key = st.one_of(st.sampled_from(EDGES), st.integers(0, 20), st.integers(0, 2**64 - 1))
    run = st.lists(key, max_size=40)
    updates = draw(st.lists(st.lists(run, min_size=tables, max_size=tables), max_size=6))
    return draw(st.sampled_from([1, 3, 16])), tables, updates


@settings(max_examples=60, deadline=None)
@given(histories())
def test_any_history_counts_every_key_in_its_table(history) -> None:
    """With a rate of 1, no initial values and gradients of -1, rows count how often their key was there."""
    dim, tables, updates = history
    under_test = TableGroup(
        [TableSpec(f"t{i}", dim, 0.0) for i in range(tables)],
        Optimizer(use="sgd", learning_rate=1.0),
        seed=0,
        reserve_bytes=1 << 24,
    )
    expected: dict[tuple[int, int], int] = {}
    for update in updates:
        flat = u64([key for run in update for key in run])
        grads = np.full((len(flat), dim), -1.0, np.float32)
        under_test.update(*summed(flat, counts(*map(len, update)), grads))
        for t, run in enumerate(update):
            for key in run:
                expected[t, key] = expected.get((t, key), 0) + 1
    assert contents(under_test) == {name: [float(count)] * dim for name, count in expected.items()}
    for (t, key), count in expected.items():
        got = under_test.gather(u64([key]), counts(*[int(i == t) for i in range(tables)]))
        assert got.tolist() == [[float(count)] * dim]


def test_scan_beyond_the_end_is_empty() -> None:
    tables = group(4)
    tables.update(u64([1, 2, 3]), counts(3), np.ones((3, 4), np.float32))
    for start, limit, rows in ((0, 0, 0), (1, 1, 1), (2, 100, 1), (3, 5, 0), (10**6, 5, 0)):
        data, following = tables.scan(start, limit)
        assert (len(data.ids), len(data.tables), data.values.shape) == (rows, rows, (rows, 4))
        assert following == max(start, min(3, start + limit))
    for start, limit in ((-1, 5), (0, -1)):
        with pytest.raises(ValueError, match="rows from"):
            tables.scan(start, limit)


@pytest.mark.parametrize(
    "wrong", [[3], [1, 1], [2, 1, 0], [-1, 3], [2**62, 2], [2**63 - 1, 2**63 - 1], [-(2**62), 2**62 + 2], []]
)
def test_counts_that_do_not_fit_are_refused_and_change_nothing(wrong: list[int]) -> None:
    tables = group(2, tables=2)
    keys = u64([1, 2])
    if wrong == [1, 1]:
        with pytest.raises(ValueError, match="gradients of shape"):
            tables.update(keys, counts(*wrong), np.ones((2, 3), np.float32))
        return
    with pytest.raises(ValueError, match="counts"):
        tables.gather(keys, counts(*wrong))
    with pytest.raises(ValueError, match="counts"):
        tables.update(keys, counts(*wrong), np.ones((2, 2), np.float32))
    assert tables.rows == 0


def test_a_full_group_says_so() -> None:
    tables = TableGroup(specs(4), OPTIMIZERS["sgd"], seed=0, reserve_bytes=4096)
    with pytest.raises(JobError, match="embedding tables of dim 4 are full") as caught:
        tables.update(np.arange(1000, dtype=np.uint64), counts(1000), np.ones((1000, 4), np.float32))
    assert "memory" in caught.value.hint


@pytest.mark.parametrize("size", [1 << 62, 1 << 70])
def test_arenas_of_absurd_sizes_are_refused(size: int) -> None:
    with pytest.raises(JobError, match="can't reserve"):
        Arena("absurd", size)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has arenas that are files")
def test_putting_data_into_an_arena_changes_nothing_around_it() -> None:
    arena = Arena("put", 100_000)
    arena.bytes[:5000] = 1
    data = np.arange(9001, dtype=np.uint16)
    assert arena.put(4998, data)
    assert (arena.bytes[:4998] == 1).all()
    assert arena.bytes[4998 : 4998 + data.nbytes].tobytes() == data.tobytes()
    assert not arena.bytes[4998 + data.nbytes :].any()
    arena.bytes[6000:30_000] = 2
    assert arena.put(6000, data[:100])
    assert arena.bytes[6200:30_000].min() == 2
    assert not arena.put(arena.size - 2, data[:2]), "beyond its end"


def test_an_arena_is_zero_and_as_large_as_asked_for() -> None:
    arena = Arena("small", 10_000)
    assert len(arena.bytes) == arena.size >= 10_000
    assert not arena.bytes.any()
    arena.bytes[-1] = 7
    assert arena.bytes[-1] == 7
