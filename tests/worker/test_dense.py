"""A module's parameters as one vector, and its shares on the parameter servers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dlrover_lite.protocol.ps_messages import DenseSpec
from dlrover_lite.recipe.schema import Schedule
from dlrover_lite.tables.hashing import SLOTS
from dlrover_lite.tables.layout import BLOCK, BUFFERS, PARAMETERS, slots_of
from dlrover_lite.worker.parameters.dense import DensePlacement, FlatParameters
from dlrover_lite.worker.parameters.slot_map import SlotMap
from dlrover_lite.worker.schedule import learning_rate_factor


class Tied(nn.Module):
    """One weight in two places, one parameter that is never used, and one that isn't trained."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.unused = nn.Parameter(torch.full((3,), 7.0))
        self.frozen = nn.Parameter(torch.full((2,), 9.0), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)).sum() * self.frozen.sum()


def test_parameters_are_views_of_the_vector_and_the_other_way_round() -> None:
    torch.manual_seed(0)
    module, twin = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1)), None
    before = {name: tensor.detach().clone() for name, tensor in module.named_parameters()}
    flat = FlatParameters(module)
    assert flat.count == 3 * 5 + 5 + 5 + 1
    assert flat.spec == DenseSpec(1, 0)
    assert flat.length == flat.averaged_from == len(flat.values) == BLOCK
    assert not flat.values[flat.count :].any()
    assert flat.values.dtype == np.float32
    for name, tensor in module.named_parameters():
        assert torch.equal(tensor, before[name])
    x = torch.randn(7, 3)
    twin = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1))
    flat.values[:] = FlatParameters(twin).values
    assert torch.equal(module(x), twin(x))
    with torch.no_grad():
        module[0].weight.zero_()
    assert (flat.values[: flat.count] == 0).sum() == 15
    assert {name: array.shape for name, array in flat.named_arrays().items()} == {
        name: tuple(tensor.shape) for name, tensor in before.items()
    }


def test_shared_unused_and_frozen_parameters_are_flattened_right() -> None:
    module, plain = Tied(), Tied()
    plain.load_state_dict(module.state_dict())
    flat = FlatParameters(module)
    assert flat.count == 16 + 4 + 3 + 2  # the shared weight once
    assert module.second.weight is module.first.weight
    x = torch.randn(5, 4)
    module(x).backward()
    plain(x).backward()
    gradient = flat.flatten(flat.take_gradient())
    expected = [torch.zeros_like(p) if p.grad is None else p.grad for _, p in plain.named_parameters()]
    assert np.array_equal(gradient[: flat.count], torch.cat([grad.flatten() for grad in expected]).numpy())
    assert not gradient[flat.count :].any()
    assert not gradient[:5].any()  # a module's own parameters come first
    assert all(parameter.grad is None for parameter in module.parameters())
    assert not flat.flatten(flat.take_gradient()).any()
    # one change of the vector reaches both places
    flat.values += 1.0
    assert torch.equal(module.second.weight, plain.first.weight + 1.0)


def test_gradients_of_each_step_have_their_own_memory() -> None:
    module = nn.Linear(2, 1)
    flat = FlatParameters(module)
    module(torch.ones(1, 2)).sum().backward()
    first = flat.flatten(flat.take_gradient())
    module(torch.full((1, 2), 5.0)).sum().backward()
    second = flat.flatten(flat.take_gradient())
    assert first[:3].tolist() == [1.0, 1.0, 1.0]  # it may still be on its way to a server
    assert second[:3].tolist() == [5.0, 5.0, 1.0]


def test_buffers_follow_as_the_negated_change_since_the_pull() -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    flat = FlatParameters(module)
    assert flat.spec == DenseSpec(1, 1)
    assert flat.averaged_from == BLOCK
    assert flat.count == 3 * 2 + 2 + 2 + 2 + 4  # running mean and variance; the step counter is no float
    buffers = slice(flat.averaged_from, flat.averaged_from + 4)
    flat.values[buffers] = [1.0, 2.0, 3.0, 4.0]
    flat.pulled()
    module(torch.randn(8, 3)).sum().backward()
    after = flat.values[buffers].copy()
    assert not np.array_equal(after, [1.0, 2.0, 3.0, 4.0])
    gradient = flat.flatten(flat.take_gradient())
    np.testing.assert_allclose(np.array([1.0, 2.0, 3.0, 4.0]) - gradient[buffers], after, rtol=1e-6)
    assert not gradient[buffers.stop :].any()
    assert not gradient[12 : flat.averaged_from].any()
    assert "1.running_mean" in flat.named_arrays()


def test_two_workers_average_their_batch_norm_statistics() -> None:
    """Each starts from the pulled values; the server adds both changes up, as for any other pushes."""
    server = np.array([0.0, 1.0], np.float32)
    changes = []
    for scale in (1.0, 3.0):
        module = nn.BatchNorm1d(1, affine=False)
        flat = FlatParameters(module)
        flat.values[:2] = server
        flat.pulled()
        module(torch.tensor([[scale], [-scale]]) + 10.0)
        changes.append(flat.flatten(flat.take_gradient())[:2])
    for change in changes:
        server -= change
    # momentum 0.1 twice: mean 0 + 1 + 1; unbiased variances 2 and 18
    np.testing.assert_allclose(server, [2.0, 1.0 + 0.1 * (2 - 1) + 0.1 * (18 - 1)], rtol=1e-5)


def test_buffers_that_are_constants_stay_out() -> None:
    module = nn.Linear(2, 2)
    module.register_buffer("mask", torch.ones(2), persistent=False)
    flat = FlatParameters(module)
    assert flat.count == 6
    assert flat.spec == DenseSpec(1, 0)
    assert "mask" not in flat.named_arrays()


def test_a_module_without_parameters_is_no_block() -> None:
    flat = FlatParameters(nn.ReLU())
    assert flat.spec == DenseSpec(0, 0)
    assert flat.count == flat.length == len(flat.flatten(flat.take_gradient())) == 0
    assert DensePlacement(flat.spec).keys(SlotMap(1, ("ps",), ("",), np.zeros(SLOTS, np.uint16))) == []


@settings(max_examples=60, deadline=None)
@given(parameters=st.integers(0, 40), buffers=st.integers(0, 3), parts=st.integers(1, 5), seed=st.integers(0, 2**32))
def test_dense_blocks_go_to_their_owners_and_come_back(parameters: int, buffers: int, parts: int, seed: int) -> None:
    owners = np.random.default_rng(seed).integers(0, parts, SLOTS).astype(np.uint16)
    slot_map = SlotMap(1, tuple("abcde"[:parts]), ("",) * parts, owners)
    placement = DensePlacement(DenseSpec(parameters, buffers))
    keys = placement.keys(slot_map)
    assert placement.keys(slot_map) is keys
    flat = np.repeat(np.arange(parameters + buffers, dtype=np.float32), BLOCK)
    rows = placement.take(keys, flat)
    kinds = [(table, n) for table, n in ((PARAMETERS, parameters), (BUFFERS, buffers)) if n]
    start = 0
    for group, values, (table, blocks) in zip(keys, rows, kinds, strict=True):
        assert sorted(group.keys.tolist()) == list(range(blocks))
        assert values.shape == (blocks, BLOCK)
        assert np.array_equal(values[:, 5], group.keys + np.uint64(start))
        of_part = np.repeat(np.arange(parts), group.counts.sum(axis=1))
        assert np.array_equal(owners[slots_of(table.name, group.keys)], of_part)
        assert parts > 1 or np.shares_memory(values, flat)
        start += blocks
    back = np.full_like(flat, -1)
    shares = [np.split(values, group.bounds[1:-1]) for group, values in zip(keys, rows, strict=True)]
    placement.put(keys, shares, back)
    assert np.array_equal(back, flat)


SCHEDULES = st.builds(
    Schedule,
    use=st.sampled_from(["constant", "linear", "cosine"]),
    warmup_samples=st.integers(0, 1000),
    decay_samples=st.one_of(st.none(), st.integers(1, 5000)),
    final_factor=st.floats(0, 1),
)


@settings(max_examples=100)
@given(SCHEDULES, st.integers(0, 10_000), st.integers(1, 10_000))
def test_learning_rate_factors_rise_then_fall_between_bounds(schedule: Schedule, before: int, total: int) -> None:
    factor = learning_rate_factor(schedule, before, total)
    following = learning_rate_factor(schedule, before + 1, total)
    assert 0.0 <= factor <= 1.0
    if before + 1 < schedule.warmup_samples:
        assert 0.0 < factor < following
    elif before >= schedule.warmup_samples:
        assert following <= factor + 1e-12
        assert factor >= min(schedule.final_factor, 1.0) - 1e-12
        if schedule.use == "constant":
            assert factor == 1.0
        elif before >= max(schedule.decay_samples or total, schedule.warmup_samples + 1):
            assert factor == pytest.approx(schedule.final_factor, abs=1e-12)


def test_learning_rate_factors_at_known_places() -> None:
    linear = Schedule(use="linear", warmup_samples=100, final_factor=0.2)
    assert learning_rate_factor(linear, 0, 1100) == pytest.approx(1 / 101)
    assert learning_rate_factor(linear, 100, 1100) == 1.0
    assert learning_rate_factor(linear, 600, 1100) == pytest.approx(0.6)
    assert learning_rate_factor(linear, 9999, 1100) == pytest.approx(0.2)
    cosine = Schedule(use="cosine", decay_samples=1000)
    assert learning_rate_factor(cosine, 250, 5000) == pytest.approx((1 + math.cos(math.pi / 4)) / 2)
    assert learning_rate_factor(cosine, 500, 5000) == pytest.approx(0.5)
    assert learning_rate_factor(Schedule(), 123, 1000) == 1.0
