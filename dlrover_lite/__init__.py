"""dlrover-lite: trains deep recommendation models with parameter servers it sizes by itself.

``dlrover_lite.run(recipe)`` starts a job; ``dlrover_lite.load_model(directory)`` rebuilds an exported one.
Names are loaded when first used, so that ``import dlrover_lite`` (and ``--help``) stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dlrover_lite.core.version import __version__ as __version__

if TYPE_CHECKING:
    from dlrover_lite.client.dry_run import plan as plan
    from dlrover_lite.client.handle import JobHandle as JobHandle
    from dlrover_lite.client.handle import list_jobs as list_jobs
    from dlrover_lite.client.handle import resume as resume
    from dlrover_lite.client.handle import run as run
    from dlrover_lite.client.trained_models import evaluate as evaluate
    from dlrover_lite.client.trained_models import export as export
    from dlrover_lite.client.validation import validate as validate
    from dlrover_lite.models.fields import EmbeddingField as EmbeddingField
    from dlrover_lite.models.serving import load_model as load_model

_LAZY = {
    "run": "dlrover_lite.client.handle",
    "plan": "dlrover_lite.client.dry_run",
    "evaluate": "dlrover_lite.client.trained_models",
    "export": "dlrover_lite.client.trained_models",
    "validate": "dlrover_lite.client.validation",
    "list_jobs": "dlrover_lite.client.handle",
    "resume": "dlrover_lite.client.handle",
    "JobHandle": "dlrover_lite.client.handle",
    "EmbeddingField": "dlrover_lite.models.fields",
    "load_model": "dlrover_lite.models.serving",
}

__all__ = [
    "EmbeddingField",
    "JobHandle",
    "__version__",
    "evaluate",
    "export",
    "list_jobs",
    "load_model",
    "plan",
    "resume",
    "run",
    "validate",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'dlrover_lite' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
