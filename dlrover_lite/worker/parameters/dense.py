"""A module's dense parameters as one flat vector of blocks, and which PS keeps which of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dlrover_lite.core.records import table_salt
from dlrover_lite.protocol.ps_messages import DenseSpec
from dlrover_lite.tables.layout import BLOCK, BUFFERS, PARAMETERS
from dlrover_lite.worker.parameters.embedding import GroupKeys, order_by_owner
from dlrover_lite.worker.parameters.slot_map import SlotMap

__all__ = ["DensePlacement", "FlatParameters"]


class FlatParameters:
    """Makes the parameters of ``module`` views of one vector, so that a pull is one copy.

    Buffers of floats follow the parameters: what a minibatch changes in them is pushed as a difference, and the PS adds it up
    (BatchNorm's running averages). ``check_model`` has refused modules that have buffers and don't ask for that.
    Parameters and buffers each fill whole blocks; the values between them and after them stay 0.
    """

    def __init__(self, module: nn.Module) -> None:
        self.parameters = list(module.named_parameters())
        kept = module.state_dict(keep_vars=True).keys()  # a buffer that is not persistent is a constant
        buffers = [(name, buffer) for name, buffer in module.named_buffers() if name in kept]
        self._buffers = [(name, buffer) for name, buffer in buffers if buffer.is_floating_point()]
        parameters = [tensor for _, tensor in self.parameters]
        averaged = [tensor for _, tensor in self._buffers]
        self._spans = _spans(parameters, 0)
        self._trained = self._spans[-1][1] if self._spans else 0
        parameter_blocks = -(-self._trained // BLOCK)
        self.averaged_from = parameter_blocks * BLOCK
        """Position in the vector where the buffers begin."""
        buffer_spans = _spans(averaged, self.averaged_from)
        buffers_end = buffer_spans[-1][1] if buffer_spans else self.averaged_from
        buffer_blocks = -(-(buffers_end - self.averaged_from) // BLOCK)
        self.spec = DenseSpec(parameter_blocks, buffer_blocks)
        self.count = self._trained + buffers_end - self.averaged_from
        """Number of values of the module; with those that only fill blocks up there are ``length``."""
        self.length = (parameter_blocks + buffer_blocks) * BLOCK
        flat = torch.zeros(self.length)
        with torch.no_grad():
            for tensor, (start, stop) in zip(parameters + averaged, self._spans + buffer_spans, strict=True):
                flat[start:stop] = tensor.reshape(-1)
                tensor.data = flat[start:stop].view(tensor.shape)
        self.values: NDArray[np.float32] = flat.numpy()
        self._pulled_buffers = self.values[self.averaged_from :].copy()

    def pulled(self) -> None:
        """Note that ``values`` has just been overwritten by a pull."""
        self._pulled_buffers[:] = self.values[self.averaged_from :]

    def take_gradient(self) -> list[torch.Tensor | None]:
        """Return the parameters' gradients, in order, and what the buffers have changed by; the module's own are gone."""
        gradients = [parameter.grad for _, parameter in self.parameters]
        self.forget_gradient()
        if self.averaged_from < self.length:
            gradients.append(torch.from_numpy(self._pulled_buffers - self.values[self.averaged_from :]))
        return gradients

    def flatten(self, gradients: Sequence[torch.Tensor | None]) -> NDArray[np.float32]:
        """Return what ``take_gradient`` gave as one fresh vector: zeros where no gradient arrived, then the negated change of each
        buffer."""
        out = np.empty(self.length, np.float32)
        for gradient, (start, stop) in zip(gradients, self._spans, strict=False):
            out[start:stop] = 0.0 if gradient is None else gradient.numpy().reshape(-1)
        out[self._trained : self.averaged_from] = 0.0
        if self.averaged_from < self.length:
            out[self.averaged_from :] = gradients[-1].numpy()  # type: ignore[union-attr]
        return out

    def forget_gradient(self) -> None:
        """Forget the parameters' gradients, after a backward that raised midway."""
        for _, parameter in self.parameters:
            parameter.grad = None

    def named_arrays(self) -> dict[str, NDArray[np.float32]]:
        """Return the present values by the name of the parameter or buffer."""
        return {name: tensor.detach().numpy() for name, tensor in (*self.parameters, *self._buffers)}


def _spans(tensors: Sequence[torch.Tensor], first: int) -> list[tuple[int, int]]:
    """Return where each tensor lies in the vector when they follow each other from ``first`` on."""
    return list(pairwise(accumulate((tensor.numel() for tensor in tensors), initial=first)))


class DensePlacement:
    """The blocks of a flat vector as keys and rows: those of the parameters, and those of the buffers, as far as there are any."""

    def __init__(self, spec: DenseSpec) -> None:
        kinds = ((PARAMETERS, spec.parameter_blocks), (BUFFERS, spec.buffer_blocks))
        self._kinds = [(np.array([table_salt(table.name)], np.uint64), blocks) for table, blocks in kinds if blocks]
        self._starts = list(accumulate((blocks for _, blocks in self._kinds), initial=0))
        self._map: SlotMap | None = None
        self._keys: list[GroupKeys] = []

    def keys(self, slot_map: SlotMap) -> list[GroupKeys]:
        """Return all blocks of each group, by the PS that own them; kept for the newest map asked about."""
        if self._map is not slot_map:
            self._map, self._keys = slot_map, [_blocks(salts, blocks, slot_map) for salts, blocks in self._kinds]
        return self._keys

    def take(self, keys: Sequence[GroupKeys], flat: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        """Return the rows [blocks, BLOCK] of each group of ``keys``; views of ``flat`` where there is one PS."""
        rows = flat.reshape(-1, BLOCK)
        spans = [rows[start:stop] for start, stop in pairwise(self._starts)]
        return [
            span if len(group.counts) == 1 else span[group.keys.view(np.int64)]
            for group, span in zip(keys, spans, strict=True)
        ]

    def put(
        self, keys: Sequence[GroupKeys], shares: Sequence[Sequence[NDArray[np.float32]]], flat: NDArray[np.float32]
    ) -> None:
        """Write each group's rows into ``flat``, the reverse of ``take``; they come as arrays that follow each other."""
        rows = flat.reshape(-1, BLOCK)
        for group, pieces, (start, stop) in zip(keys, shares, pairwise(self._starts), strict=True):
            if len(pieces) == 1:
                rows[start:stop] = pieces[0]
                continue
            numbers = group.keys.view(np.int64) + start
            at = 0
            for piece in pieces:
                rows[numbers[at : at + len(piece)]] = piece
                at += len(piece)


def _blocks(salts: NDArray[np.uint64], blocks: int, slot_map: SlotMap) -> GroupKeys:
    numbers = np.arange(blocks, dtype=np.uint64)
    order, counts = order_by_owner(numbers, np.array([blocks], np.int64), salts, slot_map.owners, slot_map.parts)
    keys = np.empty_like(numbers)
    keys[order] = numbers
    return GroupKeys(keys, counts, np.empty(0, np.int32), BLOCK, salts)
