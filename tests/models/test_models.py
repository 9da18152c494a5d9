"""The four models compute what their papers say, for any number of columns."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dlrover_lite.core.errors import ModelError
from dlrover_lite.data.base import Schema
from dlrover_lite.models.built_in.dcn import DCN
from dlrover_lite.models.built_in.dlrm import DLRM
from dlrover_lite.models.built_in.layers import LinearAndDeep
from dlrover_lite.models.built_in.wide_deep import WideDeep
from dlrover_lite.models.built_in.xdeepfm import XDeepFM
from dlrover_lite.models.check import check_model

VARIANTS = [
    (WideDeep, {}),
    (WideDeep, {"hidden": [8]}),
    (DCN, {}),
    (DCN, {"low_rank": 3, "cross_layers": 2}),
    (DCN, {"cross": "vector"}),
    (XDeepFM, {"cin_sizes": [6, 5], "hidden": [16, 8, 4]}),
    (DLRM, {"bottom": [8], "top": [16, 8]}),
]


def columns(dense: int, categorical: int) -> Schema:
    return Schema(tuple(f"I{i}" for i in range(dense)), tuple(f"C{i}" for i in range(categorical)))


def inputs(model: nn.Module, dense: int, batch: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    width = sum(field.dim for field in model.embedding_fields)
    return torch.randn(batch, dense), torch.randn(batch, width, requires_grad=True)


@pytest.mark.parametrize("make, options", VARIANTS)
@pytest.mark.parametrize("dense, categorical", [(3, 4), (0, 4), (3, 1), (0, 1), (3, 0)])
def test_every_model_trains_on_any_number_of_columns(make, options, dense, categorical):
    schema = columns(dense, categorical)
    if make is XDeepFM and not categorical:
        with pytest.raises(ModelError, match="data has none"):
            make(schema, **options)
        return
    model = make(schema, embedding_dim=4, **options)
    check_model(model, schema)
    assert [field.column for field in model.embedding_fields] == list(schema.categorical)
    x, embedded = inputs(model, dense)
    logits = model(x, embedded)
    assert logits.shape == (7,)
    with torch.no_grad():
        torch.testing.assert_close(model(x, embedded), logits.detach())
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters() if parameter.numel())


@pytest.mark.parametrize("make, options", VARIANTS)
def test_models_without_any_column_are_refused(make, options):
    with pytest.raises(ModelError):
        make(columns(0, 0), **options)


@pytest.mark.parametrize("make", [WideDeep, DCN, XDeepFM, DLRM])
def test_logits_of_a_sample_do_not_depend_on_others(make, schema):
    model = make(schema, embedding_dim=4)
    dense, embedded = inputs(model, 3)
    order = torch.randperm(7)
    torch.testing.assert_close(model(dense[order], embedded[order]), model(dense, embedded)[order])


@pytest.mark.parametrize("dense, fields, hidden", [(3, 4, (8, 5)), (0, 4, (8,)), (2, 1, (8, 6, 4)), (3, 0, (8, 4))])
def test_linear_and_deep_equals_its_definition_with_gradients(dense, fields, hidden):
    dim = 3
    tower = LinearAndDeep(fields=fields, dim=dim, dense=dense, hidden=hidden).double()
    nn.init.normal_(tower.linear_dense)
    x = torch.randn(6, dense, dtype=torch.float64, requires_grad=True)
    embedded = torch.randn(6, fields * (1 + dim), dtype=torch.float64, requires_grad=True)

    def definition():
        vectors = embedded.view(6, fields, 1 + dim)
        deep = torch.cat([vectors[:, :, 1:].flatten(1), x], 1)
        return tower.deep(deep).squeeze(1) + vectors[:, :, 0].sum(1) + x @ tower.linear_dense

    wanted = [x, embedded, *tower.parameters()]
    weights = torch.randn(6, dtype=torch.float64)
    ours, plain = tower(x, embedded), definition()
    torch.testing.assert_close(ours, plain)
    for mine, expected in zip(
        torch.autograd.grad(ours @ weights, wanted), torch.autograd.grad(plain @ weights, wanted), strict=True
    ):
        torch.testing.assert_close(mine, expected)


def test_wide_and_deep_adds_the_linear_weights(schema):
    model = WideDeep(schema, embedding_dim=4, hidden=[8])
    dense, embedded = inputs(model, 3)
    moved = embedded.detach().clone()
    moved.view(7, 4, 5)[:, :, 0] += 0.25
    torch.testing.assert_close(model(dense, moved), model(dense, embedded) + 1.0)


def test_dcn_cross_layers_equal_their_definition(schema):
    for options in ({"cross": "matrix"}, {"cross": "vector"}, {"low_rank": 2}):
        model = DCN(schema, embedding_dim=4, cross_layers=1, **options)
        dense, embedded = inputs(model, 3)
        start = torch.cat([embedded, dense], 1)
        layer = model.cross[0]
        bias = getattr(layer, "bias", 0.0)
        crossed = start * layer.product(start) + bias + start
        expected = model.cross_output(crossed) + model.deep(start)
        torch.testing.assert_close(model(dense, embedded), expected.squeeze(1))


def test_xdeepfm_compresses_products_of_feature_maps(schema):
    model = XDeepFM(schema, embedding_dim=3, cin_sizes=[5, 2])
    dense, embedded = inputs(model, 3)
    start = embedded.view(7, 4, 4)[:, :, 1:]
    maps, expected = start, model.tower(dense, embedded)
    for layer, output, size in zip(model.cin, model.cin_outputs, (5, 2), strict=True):
        weight = layer.weight.view(size, maps.shape[1], 4)
        maps = torch.einsum("hij,bid,bjd->bhd", weight, maps, start)
        expected = expected + output(maps.sum(2)).squeeze(1)
    torch.testing.assert_close(model(dense, embedded), expected)
    logits = model(dense, embedded)
    wanted = [embedded, *model.parameters()]
    for mine, plain in zip(
        torch.autograd.grad(logits.sum(), wanted), torch.autograd.grad(expected.sum(), wanted), strict=True
    ):
        torch.testing.assert_close(mine, plain)


def test_dlrm_uses_every_pair_once(schema):
    model = DLRM(schema, embedding_dim=3)
    dense, embedded = inputs(model, 3)
    bottom = model.bottom(dense)
    vectors = [bottom, *embedded.view(7, 4, 3).unbind(1)]
    pairs = [(vectors[i] * vectors[j]).sum(1) for i in range(5) for j in range(i)]
    expected = model.top(torch.cat([bottom, torch.stack(pairs, 1)], 1)).squeeze(1)
    torch.testing.assert_close(model(dense, embedded), expected)
    for mine, plain in zip(
        torch.autograd.grad(model(dense, embedded).sum(), [embedded, *model.parameters()]),
        torch.autograd.grad(expected.sum(), [embedded, *model.parameters()]),
        strict=True,
    ):
        torch.testing.assert_close(mine, plain)


@pytest.mark.parametrize("make", [WideDeep, DCN, XDeepFM, DLRM])
def test_every_built_in_model_learns(make, schema):
    torch.manual_seed(0)
    model = make(schema, embedding_dim=4)
    dense, embedded = inputs(model, 3, batch=64)
    labels = (dense[:, 0] > 0).float()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(dense, embedded.detach()), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize(
    "make, option, value",
    [
        (WideDeep, "embedding_dim", 0),
        (WideDeep, "embedding_dim", True),
        (WideDeep, "embedding_dim", "16"),
        (WideDeep, "hidden", []),
        (WideDeep, "hidden", [256, 0]),
        (WideDeep, "hidden", 256),
        (WideDeep, "init_scale", -1),
        (DCN, "cross", "matrx"),
        (DCN, "cross_layers", 0),
        (DCN, "low_rank", -1),
        (XDeepFM, "cin_sizes", [1.5]),
        (DLRM, "bottom", None),
        (DLRM, "top", [[8]]),
    ],
)
def test_bad_model_options_are_named(make, option, value, schema):
    with pytest.raises(ModelError, match=option):
        make(schema, **{option: value})


def test_a_misspelt_option_value_gets_the_nearest():
    with pytest.raises(ModelError) as raised:
        DCN(columns(1, 1), cross="matrx")
    assert "'matrix'" in raised.value.hint
