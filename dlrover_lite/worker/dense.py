"""A module's dense parameters as one flat vector, and which PS keeps which blocks of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dlrover_lite.ps.hashing import SLOT_SHIFT, mix64, table_salt

__all__ = ["BLOCK", "DensePlacement", "FlatParameters"]

BLOCK = 4096
"""Values a block; a block lives in the slot of its number."""


class FlatParameters:
    """Makes the parameters of ``module`` views of one vector, so that a pull is one copy.

    Buffers of floats follow the parameters: what a minibatch changes in them is pushed as a difference, and the PS adds it up
    (BatchNorm's running averages). ``check_model`` has refused modules that have buffers and don't ask for that.
    """

    def __init__(self, module: nn.Module) -> None:
        self.parameters = list(module.named_parameters())
        kept = module.state_dict(keep_vars=True).keys()  # a buffer that is not persistent is a constant
        buffers = [(name, buffer) for name, buffer in module.named_buffers() if name in kept]
        self._buffers = [(name, buffer) for name, buffer in buffers if buffer.is_floating_point()]
        tensors = [tensor for _, tensor in (*self.parameters, *self._buffers)]
        starts = np.concatenate(([0], np.cumsum([tensor.numel() for tensor in tensors]))).astype(int).tolist()
        self.length = starts[-1]
        self.averaged_from = starts[len(self.parameters)]
        """Where the buffers begin."""
        flat = torch.empty(self.length)
        spans = list(pairwise(starts))
        self._spans = spans[: len(self.parameters)]
        with torch.no_grad():
            for tensor, (start, stop) in zip(tensors, spans, strict=True):
                flat[start:stop] = tensor.reshape(-1)
                tensor.data = flat[start:stop].view(tensor.shape)
        self.values: NDArray[np.float32] = flat.numpy()
        self._pulled_buffers = self.values[self.averaged_from :].copy()

    def pulled(self) -> None:
        """``values`` has just been overwritten by a pull."""
        self._pulled_buffers[:] = self.values[self.averaged_from :]

    def take_gradient(self) -> list[torch.Tensor | None]:
        """The parameters' gradients, in order, and what the buffers have changed by; the module's own are gone."""
        gradients = [parameter.grad for _, parameter in self.parameters]
        self.forget_gradient()
        if self.averaged_from < self.length:
            gradients.append(torch.from_numpy(self._pulled_buffers - self.values[self.averaged_from :]))
        return gradients

    def flatten(self, gradients: Sequence[torch.Tensor | None]) -> NDArray[np.float32]:
        """What ``take_gradient`` gave as one fresh vector: zeros where no gradient arrived, then the negated change of each buffer."""
        out = np.empty(self.length, np.float32)
        for gradient, (start, stop) in zip(gradients, self._spans, strict=False):
            out[start:stop] = 0.0 if gradient is None else gradient.numpy().reshape(-1)
        if self.averaged_from < self.length:
            out[self.averaged_from :] = gradients[-1].numpy()  # type: ignore[union-attr]
        return out

    def forget_gradient(self) -> None:
        """After a backward that raised midway."""
        for _, parameter in self.parameters:
            parameter.grad = None

    def named_arrays(self) -> dict[str, NDArray[np.float32]]:
        """Parameter or buffer name -> its present values."""
        return {name: tensor.detach().numpy() for name, tensor in (*self.parameters, *self._buffers)}


class DensePlacement:
    """Which pieces of the flat vector each of ``parts`` PS keeps: the blocks whose slots it owns, in order."""

    def __init__(self, length: int, owners: NDArray[np.uint16], parts: int) -> None:
        salt = int(table_salt("dense parameters"))
        self._pieces: list[list[slice]] = [[] for _ in range(parts)]
        for block, start in enumerate(range(0, length, BLOCK)):
            slot = int(mix64(np.uint64(block ^ salt))) >> SLOT_SHIFT
            pieces = self._pieces[int(owners[slot])]
            stop = min(start + BLOCK, length)
            if pieces and pieces[-1].stop == start:
                pieces[-1] = slice(pieces[-1].start, stop)
            else:
                pieces.append(slice(start, stop))
        self.lengths = [sum(piece.stop - piece.start for piece in pieces) for pieces in self._pieces]

    def before(self, part: int, position: int) -> int:
        """How many values of this PS's share lie before ``position`` of the flat vector."""
        return sum(max(0, min(piece.stop, position) - piece.start) for piece in self._pieces[part])

    def take(self, part: int, flat: NDArray[np.float32]) -> NDArray[np.float32]:
        """This PS's share of ``flat``; a view when it is one piece."""
        pieces = self._pieces[part]
        if len(pieces) == 1:
            return flat[pieces[0]]
        return np.concatenate([flat[piece] for piece in pieces]) if pieces else np.empty(0, np.float32)

    def put(self, part: int, share: NDArray[np.float32], flat: NDArray[np.float32]) -> None:
        """The reverse of ``take``: write a PS's share into ``flat``."""
        start = 0
        for piece in self._pieces[part]:
            stop = start + piece.stop - piece.start
            flat[piece] = share[start:stop]
            start = stop
