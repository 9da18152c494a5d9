"""Thread counts that follow the cores a node is given. More threads than cores only make each other wait."""

from __future__ import annotations

import os
import sys
from typing import Any

__all__ = ["THREAD_VARIABLES", "ThreadPools"]

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


class ThreadPools:
    """Thread pools of the libraries that are loaded when it is made. Looking for them takes milliseconds: once, before nodes are forked."""

    def __init__(self) -> None:
        self._native: Any = None
        if "numpy" in sys.modules or "torch" in sys.modules:
            from threadpoolctl import ThreadpoolController

            self._native = ThreadpoolController()

    def resize(self, cores: float) -> None:
        """Use one thread per whole core, at least one: for BLAS, OpenMP, torch and numba as far as they are loaded, for what is loaded
        later, and for processes started later. Before any of them has started threads."""
        count = max(1, int(cores))
        for variable in THREAD_VARIABLES:
            os.environ[variable] = str(count)
        if self._native is not None:
            self._native.limit(limits=count)
        # Named by what is loaded: this module imports neither.
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(count)
        if (config := sys.modules.get("numba.core.config")) is not None:
            config.NUMBA_NUM_THREADS = count  # type: ignore[attr-defined]
        if (parallel := sys.modules.get("numba.np.ufunc.parallel")) is not None:
            parallel.NUM_THREADS = count  # type: ignore[attr-defined]  # it has read the other one when it was imported
