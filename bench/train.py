"""Training throughput: real jobs (keeper, master with its ledger, PS, workers) over the same model in plain PyTorch on the same cores.

``train.ratio``: 1 PS + 1 worker, ``train.ratio_2w``: 1 PS + 2 workers, ``train.ratio_2ps``: 2 PS of half the size + 1 worker, all
without reading data; ``train.ratio_with_data``: 1 PS + 1
worker reading a Criteo file, over the baseline with the same reader in a process of its own (torch's DataLoader).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).parent))

from _train_worker import BATCH_SIZE, FEATURES, IDS, TIMES, make_batches
from common import Figure, arguments, emit, medians

MIB = 1 << 20
WARM_UP_SECONDS = 2.0


def job_samples_per_second(
    directory: Path,
    data: dict[str, Any],
    workers: int,
    samples: int,
    *,
    servers: int = 1,
    transport: Literal["unix", "tcp"] = "unix",
) -> float:
    """Of a job of ``samples`` over the time in which all its workers were at work, without its first seconds."""
    from dlrover_lite.backends.keeper.options import KeeperOptions
    from dlrover_lite.backends.local.jobs.local_jobs import LocalJobs
    from dlrover_lite.client.handle import launch
    from dlrover_lite.jobs.backend import RunOptions
    from dlrover_lite.recipe.load import parse_recipe

    recipe = parse_recipe(
        {
            "version": 1,
            "name": "bench-train",
            "model": {"use": "wide_deep", "options": {"embedding_dim": 16, "hidden": [256, 128]}},
            "data": data,
            "training": {"batch_size": BATCH_SIZE, "optimizer": {"use": "adagrad", "learning_rate": 0.02}},
            "resources": {
                # Limits are enforced. A worker reads, pulls and pushes beside its one thread that computes.
                "ps": {"count": servers, "cores": 1 / servers, "memory": 4096 * MIB // servers},
                "worker": {"count": workers, "cores": 1.5 if workers == 1 else 1, "memory": 1024 * MIB},
            },
            "export": {"format": "none"},
            "directory": str(directory),
        },
        overrides={"training.epochs": max(1, samples // data_samples(data))},
    )
    entries = {"ps": "dlrover_lite.ps.server.main:main", "worker": "_train_worker:main"}
    backend = LocalJobs(KeeperOptions(entries=entries))  # type: ignore[arg-type]
    handle = launch(recipe, options=RunOptions(transport=transport), backend=backend)
    result = handle.wait()
    if not result.ok:
        raise SystemExit(f"{result.message}\n{result.hint}\n{result.traceback}")
    times = [json.loads((handle.directory / TIMES.format(node=f"worker-{i}")).read_text()) for i in range(workers)]
    start = max(reads[0] for reads in times) + WARM_UP_SECONDS
    end = min(reads[-1] for reads in times)
    minibatches = sum(start <= at < end for reads in times for at in reads)
    return float(minibatches * BATCH_SIZE / (end - start))


def data_samples(data: dict[str, Any]) -> int:
    return int(data["samples"]) if data["format"] == "synthetic" else FILE_SAMPLES


FILE_SAMPLES = 300_000


def baseline(*, with_data: Path | None, minibatches: int) -> float:
    """Samples/s of plain PyTorch, in a process of its own so that its threads and memory are its own."""
    command = [sys.executable, str(Path(__file__)), "--baseline", str(minibatches)]
    if with_data is not None:
        command += ["--file", str(with_data)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


def run_baseline(minibatches: int, file: Path | None) -> float:
    import torch
    from reference import PlainWideDeep, WideDeepBatch, samples_per_second, wide_deep_batches

    from dlrover_lite.models.matmul import use_onednn

    torch.set_num_threads(2)
    use_onednn()  # as workers do
    model = PlainWideDeep(rows_per_feature=IDS, features=FEATURES)
    optimizers = model.optimizers()
    if file is None:
        batches = wide_deep_batches(64, ids=IDS)
        samples_per_second(model, optimizers, batches)
        return samples_per_second(model, optimizers, [batches[i % 64] for i in range(minibatches)])
    loader = iter(read_in_another_process(file, minibatches + 64))
    made: Callable[[Any], WideDeepBatch] = lambda parts: WideDeepBatch(*parts)  # noqa: E731
    samples_per_second(model, optimizers, (made(next(loader)) for _ in range(64)))
    return samples_per_second(model, optimizers, map(made, loader))


def read_in_another_process(file: Path, minibatches: int) -> Any:
    """Our reader behind torch's DataLoader: one process that reads ahead."""
    import numpy as np
    import torch
    from torch.utils.data import DataLoader
    from torch.utils.data import Dataset as TorchDataset

    from dlrover_lite.data.base import Dataset
    from dlrover_lite.data.open import open_data
    from dlrover_lite.data.order import EpochOrder
    from dlrover_lite.recipe.schema import CriteoData

    dataset = open_data(CriteoData(train=[str(file)], eval_share=0.0), directory=file.parent, part="train")
    assert dataset is not None
    reader: Dataset = dataset
    order = EpochOrder(dataset.samples, seed=0, epoch=0)
    per_epoch = dataset.samples // BATCH_SIZE

    class Minibatches(TorchDataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return minibatches

        def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            at = i % per_epoch * BATCH_SIZE
            batch = reader.read(order.numbers(at, at + BATCH_SIZE))
            indices = (batch.ids % np.uint64(IDS)).astype(np.int64).T
            return (
                torch.from_numpy(batch.dense),
                torch.from_numpy(np.ascontiguousarray(indices)),
                torch.from_numpy(batch.labels),
            )

    return DataLoader(Minibatches(), batch_size=None, num_workers=1, prefetch_factor=8)


def extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--baseline", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, help="interleaved rounds (default 5; 1 with --quick)")
    parser.add_argument(
        "--only", choices=["ratio", "ratio_2w", "ratio_2ps", "ratio_with_data"], help="measure one figure"
    )


def main() -> None:
    options = arguments(__doc__ or "", extend)
    if options.baseline:
        print(run_baseline(options.baseline, options.file))
        return
    bench = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [bench, os.environ.get("PYTHONPATH", "")]))
    with tempfile.TemporaryDirectory() as home:
        os.environ.setdefault("DLROVER_LITE_HOME", home)
        emit(options, measure(Path(home), options))


def measure(home: Path, options: argparse.Namespace) -> list[Figure]:
    samples = 400_000 if options.quick else 1_200_000
    rounds = options.rounds or (1 if options.quick else 5)
    minibatches = samples // BATCH_SIZE // 2
    make_batches(home / "batches.npz")
    memory = {"format": "synthetic", "samples": samples, "eval_samples": 0}
    subjects: dict[str, Callable[[], float]] = {}
    if options.only != "ratio_with_data":
        subjects["plain"] = lambda: baseline(with_data=None, minibatches=minibatches)
    if options.only in (None, "ratio"):
        subjects["ratio"] = lambda: job_samples_per_second(home, memory, 1, samples)
    if options.only in (None, "ratio_2w"):
        subjects["ratio_2w"] = lambda: job_samples_per_second(home, memory, 2, samples)
    if options.only in (None, "ratio_2ps"):
        subjects["ratio_2ps"] = lambda: job_samples_per_second(home, memory, 1, samples, servers=2)
    if options.only in (None, "ratio_with_data"):
        file = make_file(home)
        criteo = {"format": "criteo", "train": [str(file)], "eval_share": 0.0}
        subjects["plain_with_data"] = lambda: baseline(with_data=file, minibatches=minibatches)
        subjects["ratio_with_data"] = lambda: job_samples_per_second(file.parent, criteo, 1, samples)
    rates = medians(subjects, rounds, warm_up=0 if options.quick else 1)
    targets = {"ratio": ">= 1.5", "ratio_2w": ">= 1.9", "ratio_2ps": "", "ratio_with_data": ">= 1.5"}
    figures = []
    for name, target in targets.items():
        if name in rates:
            plain = rates["plain_with_data" if name == "ratio_with_data" else "plain"]
            figures.append(
                Figure(f"train.{name}", rates[name] / plain, "x", target, plain, {"samples_per_second": rates[name]})
            )
    return figures


def make_file(home: Path) -> Path:
    from dlrover_lite.data.synthetic import write_tsv
    from dlrover_lite.recipe.schema import SyntheticData

    directory = home / "file"
    directory.mkdir()
    path = directory / "clicks.tsv"
    write_tsv(path, SyntheticData(samples=FILE_SAMPLES, ids_per_field=IDS, zipf_exponent=1.2), FILE_SAMPLES, False)
    return path


if __name__ == "__main__":
    main()
