"""Built-in and user models are built alike, and every mistake is explained."""

from __future__ import annotations

import importlib
import inspect
import textwrap

import pytest
import torch

from dlrover_lite.core.errors import ModelError
from dlrover_lite.data.census import CENSUS_SCHEMA
from dlrover_lite.models.registry import BUILT_IN, build_model, loss_of
from dlrover_lite.recipe.model_options import BUILT_IN_OPTIONS
from dlrover_lite.recipe.schema import Model

PREAMBLE = """
import torch
from torch import nn
from dlrover_lite.models.fields import EmbeddingField

def fields(*columns, dim=4):
    return [EmbeddingField(column, dim) for column in columns]
"""

GOOD = """
class Mine(nn.Module):
    def __init__(self, schema, *, size: int = 8):
        super().__init__()
        self.embedding_fields = fields("C1", "C2")
        self.net = nn.Sequential(nn.Linear(8 + len(schema.dense), size), nn.ReLU(), nn.Linear(size, 1))
    def forward(self, dense, embedded):
        return self.net(torch.cat([dense, embedded], 1))
"""


@pytest.fixture
def build(tmp_path, schema):
    def build(code: str, use: str = "mine.py:Mine", *, preamble: str = PREAMBLE, **options):
        (tmp_path / "mine.py").write_text(preamble + textwrap.dedent(code))
        return build_model(Model(use=use, options=options), schema, directory=tmp_path, seed=3)

    return build


@pytest.mark.parametrize("use", BUILT_IN)
def test_models_built_from_the_same_seed_are_equal(use, schema, tmp_path):
    schema = CENSUS_SCHEMA if use == "census" else schema

    def parameters(seed):
        model = build_model(Model(use=use, options={"embedding_dim": 4}), schema, directory=tmp_path, seed=seed)
        return torch.cat([parameter.flatten() for parameter in model.parameters()])

    state = torch.random.get_rng_state()
    assert torch.equal(parameters(1), parameters(1))
    assert not torch.equal(parameters(1), parameters(2))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_unknown_names_and_options_get_the_nearest(schema, tmp_path):
    for use, options, near in [
        ("wide_and_deep", {}, "'wide_deep'"),
        ("wide_deep", {"embeding_dim": 4}, "'embedding_dim'"),
        ("mine.py", {}, "mine.py:YourClass"),
    ]:
        with pytest.raises(ModelError) as raised:
            build_model(Model(use=use, options=options), schema, directory=tmp_path, seed=0)
        assert near in raised.value.hint


def test_a_user_model_takes_options(build):
    model = build(GOOD, size=5)
    assert model.net[0].out_features == 5
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_user_model_may_lack_schema_and_have_its_own_loss(build):
    model = build(
        """
        class Mine(nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding_fields = fields("C3")
                self.net = nn.Linear(4, 1)
            def forward(self, dense, embedded):
                return self.net(embedded)
            def loss(self, logits, labels):
                return ((logits - labels) ** 2).mean()
        """
    )
    assert float(loss_of(model)(torch.tensor([3.0]), torch.tensor([1.0]))) == 4.0


def test_a_user_model_may_import_its_neighbours(build, tmp_path):
    (tmp_path / "neighbour_of_mine.py").write_text("SIZE = 6\n")
    code = "from neighbour_of_mine import SIZE\n" + GOOD.replace("size: int = 8", "size: int = SIZE")
    assert build(code).net[0].out_features == 6


def test_import_errors_show_only_the_users_frames(build, tmp_path):
    with pytest.raises(ModelError) as raised:
        build("def helper():\n    return 1 / 0\n\nhelper()\n")
    text = raised.value.user_traceback
    assert "mine.py" in text and "1 / 0" in text and "ZeroDivisionError" in text
    assert "importlib" not in text and "user.py" not in text
    assert "ZeroDivisionError" in raised.value.message


def test_a_syntax_error_shows_the_line(build):
    with pytest.raises(ModelError) as raised:
        build("class Mine(nn.Module:\n    pass\n")
    assert "mine.py" in raised.value.user_traceback and "class Mine(nn.Module:" in raised.value.user_traceback


def test_exit_at_import_is_an_error_not_an_exit(build):
    with pytest.raises(ModelError, match="SystemExit"):
        build("raise SystemExit(3)\n")


def test_errors_in_constructor_and_forward_carry_the_users_frames(build):
    for broken, line in [
        (GOOD.replace("super().__init__()", "super().__init__(); oops"), "oops"),
        (GOOD.replace("torch.cat([dense, embedded], 1)", "embedded"), "self.net(embedded)"),
    ]:
        with pytest.raises(ModelError) as raised:
            build(broken)
        assert line in raised.value.user_traceback
        assert "torch/nn/modules" not in raised.value.user_traceback


@pytest.mark.parametrize(
    "use, message, hint",
    [
        ("mine.py:Mime", "no 'Mime'", "'Mine'"),
        ("mini.py:Mine", "doesn't exist", "'mine.py'"),
        ("mine.txt:Mine", "doesn't name a class", "my_model.py:MyModel"),
        ("mine.py:", "doesn't name a class", "my_model.py:MyModel"),
        ("mine.py:PREFIX", "can't be called", "torch.nn.Module"),
        ("mine.py:fields", "list", "torch.nn.Module"),
    ],
)
def test_wrong_model_names_are_refused_with_a_hint(build, use, message, hint):
    with pytest.raises(ModelError, match=message) as raised:
        build("PREFIX = 3\n" + GOOD, use)
    assert hint in raised.value.hint


def test_missing_and_unknown_options_of_a_user_model_are_named(build):
    with pytest.raises(ModelError, match="needs the option 'size'"):
        build(GOOD.replace("size: int = 8", "size: int"))
    with pytest.raises(ModelError, match="no option 'sise'") as raised:
        build(GOOD, sise=3)
    assert "'size'" in raised.value.hint


INIT = 'self.embedding_fields = fields("C1", "C2")'
OUT = "return self.net(torch.cat([dense, embedded], 1))"


@pytest.mark.parametrize(
    "old, new, message",
    [
        (INIT, "pass", "which embeddings it wants"),
        (INIT, "self.embedding_fields = ['C1', 'C2']", "list of EmbeddingField"),
        (INIT, 'self.embedding_fields = fields("C1", "C22")', "'C22'"),
        (INIT, 'self.embedding_fields = fields("C1", "C2", dim=0)', "has dim 0"),
        (INIT, 'self.embedding_fields = [EmbeddingField("C1", 4, init_scale=-1.0)]', "init_scale"),
        (
            INIT,
            'self.embedding_fields = [EmbeddingField("C1", 4, table="t"), EmbeddingField("C2", 3, table="t")]',
            "share the table 't' but differ in dim: 4 and 3",
        ),
        (INIT, INIT + "; self.w = nn.Parameter(torch.zeros(2).double())", "w is torch.float64"),
        (INIT, INIT + "; self.w = nn.Parameter(torch.zeros(2, device='meta'))", "device meta"),
        (INIT, INIT + "; self.lazy = nn.LazyLinear(3)", "lazy module"),
        (INIT, INIT + "; self.norm = nn.BatchNorm1d(3)", "buffer 'norm.running_mean'"),
        (INIT, INIT + "; self.register_buffer('n', torch.zeros(1).long()); self.averaged_buffers = True", "int64"),
        (OUT, "return self.net(torch.cat([dense, embedded], 1)).expand(-1, 2)", r"\[2, 2\]"),
        (OUT, "return self.net(torch.cat([dense, embedded], 1)).sum(1, dtype=torch.float64)", "float64"),
        (OUT, "return None", "NoneType"),
        (OUT, "return self.net(torch.cat([dense, embedded], 1)) / 0", "inf|nan"),
        (OUT, "return self.net(torch.cat([dense, embedded], 1)).detach()", "depends on no parameter"),
        (OUT, "return self.net(torch.cat([dense, embedded.detach()], 1))", "doesn't depend on them"),
        (OUT, OUT + "\n    def loss(self, logits, labels):\n        return logits - labels", "loss returned"),
        (OUT, OUT + "\n    def loss(self, logits, labels):\n        return logits[5]", "loss, tried"),
    ],
)
def test_models_that_cannot_be_trained_are_explained(build, old, new, message):
    assert old in GOOD
    with pytest.raises(ModelError, match=message) as raised:
        build(GOOD.replace(old, new))
    assert raised.value.hint or raised.value.user_traceback


def test_a_constant_that_forward_changes_is_refused(build):
    code = GOOD.replace(INIT, INIT + "; self.register_buffer('seen', torch.zeros(1), persistent=False)")
    build(code)
    with pytest.raises(ModelError, match="'seen'"):
        build(code.replace(OUT, "self.seen += 1; " + OUT))


def test_declared_batch_norm_is_allowed_and_left_untouched(build):
    code = GOOD.replace("nn.ReLU()", "nn.BatchNorm1d(size)").replace(
        "def __init__", "averaged_buffers = True\n    def __init__"
    )
    norm = build(code).net[1]
    assert norm.running_mean.abs().sum() == 0 and norm.num_batches_tracked == 0


def test_dense_only_models_are_allowed_but_not_empty_ones(build):
    dense_only = GOOD.replace(INIT, "self.embedding_fields = []").replace("8 + len", "len")
    assert build(dense_only).embedding_fields == []
    with pytest.raises(ModelError, match="nothing to train"):
        build(
            "class Mine(nn.Module):\n    embedding_fields = []\n    def forward(self, dense, embedded):\n"
            "        return dense.sum(1)\n"
        )


@pytest.mark.parametrize("use", BUILT_IN)
def test_options_of_built_in_models_equal_their_constructors(use: str) -> None:
    module, name = BUILT_IN[use]
    parameters = inspect.signature(getattr(importlib.import_module(module), name)).parameters
    assert set(BUILT_IN_OPTIONS[use]) == set(parameters) - {"schema"}
    for option, rule in BUILT_IN_OPTIONS[use].items():
        assert rule.fits(parameters[option].default)
