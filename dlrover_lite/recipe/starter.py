"""The recipe that ``dlrover-lite recipe init`` starts people off with."""

from __future__ import annotations

import re

__all__ = ["starter", "starter_name"]

_STARTER = """\
# A dlrover-lite recipe. Train with it:   dlrover-lite run {file}
# Check it without training:              dlrover-lite validate {file}
# Lines that start with # are off: defaults, or other choices.
version: 1
name: {name}

model: wide_deep            # wide_deep, dcn, xdeepfm, dlrm, or a class of yours: my_model.py:MyModel
# model:                    # the long form, with options for the model's constructor
#   use: dcn
#   options: {{}}

# Generated data, to try things out. For your own, take one of the sections below instead.
data:
  format: synthetic
  samples: 200_000
  eval_samples: 20_000
# data:                     # Criteo's layout: label, 13 integers, 26 categories, separated by tabs; .gz too
#   format: criteo
#   train: [train.txt]      # files or "globs/*.gz", relative to this file
#   eval_share: 0.1         # the last tenth is held out for evaluation
# data:                     # any delimited text with a header line; for Parquet: format: parquet
#   format: csv
#   train: [clicks.csv]
#   label: clicked          # 0 or 1
#   dense: [age, price]
#   categorical: [user, item, city]

training:
  batch_size: 1024
  epochs: 1
  optimizer: adagrad        # sgd, adagrad, adam, ftrl
  # optimizer:              # the long form
  #   use: adam
  #   learning_rate: 0.001
  # schedule: {{use: cosine, warmup_samples: 10_000}}
  # evaluate_every: 100_000 # samples; otherwise at the end only
  # shuffle: yes
  # seed: 0

# Leave resources out, or write auto, and they are chosen for you.
# resources:
#   ps: {{count: 1, cores: 0.5, memory: 1GiB}}
#   worker: {{count: 2, cores: 0.75, memory: 1GiB}}

# export:
#   format: npz             # npz, parquet, or none
"""


def starter(name: str = "my-job", file: str = "recipe.yaml") -> str:
    """Write a commented recipe that runs as it stands. ``name`` is the job's name, ``file`` what its comments call it."""
    return _STARTER.format(name=name, file=file)


def starter_name(file_stem: str) -> str:
    """Make a job name from a file's name; "my-job" when nothing of it can be used."""
    name = re.sub(r"[^a-z0-9]+", "-", file_stem.lower()).strip("-")[:42].strip("-")
    return name or "my-job"
