"""Recipes whose jobs run in a cluster: how that is chosen, what is kept of settings, and which files they may name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrover_lite.core.errors import RecipeError
from dlrover_lite.core.units import GIB, LEAST_MEMORY, MOST_MEMORY, Resources
from dlrover_lite.recipe.kubernetes import Kubernetes, NodePool
from dlrover_lite.recipe.load import parse_recipe, resolved_yaml
from dlrover_lite.recipe.schema import Recipe

HEAD = "version: 1\nname: job\nmodel: dcn\n"
GOOD = HEAD + "data: {format: synthetic, samples: 1000}\n"
CRITEO = HEAD + "data: {format: criteo, train: [/data/day.tsv]}\n"
MOUNTED = "backend: {k8s: {image: x, volumes: [{name: d, hostPath: {path: /d}}], volume_mounts: [{name: d, mountPath: /data}]}}\n"


def test_a_recipe_says_where_its_job_runs() -> None:
    assert parse_recipe(GOOD).kubernetes is None
    assert parse_recipe(GOOD + "backend: local\n").kubernetes is None
    assert parse_recipe(GOOD + "backend: {k8s: {image: x, storage_size: 2GiB}}\n").kubernetes == Kubernetes(
        image="x", storage_size=2 * GIB
    )


def test_a_recipe_says_what_nodes_a_cluster_would_start() -> None:
    pools = "node_pools: [{labels: {pool: ads}, most: 20, cores: 15.8, memory: 58GiB}]"
    read = parse_recipe(GOOD + f"backend: {{k8s: {{image: x, {pools}}}}}\n").kubernetes
    assert read is not None and read.node_pools == [
        NodePool(labels={"pool": "ads"}, most=20, cores=15.8, memory=58 * GIB)
    ]
    told = problems(GOOD + "backend: {k8s: {image: x, node_pools: [{most: 0, cores: 1}]}}\n")
    assert len(told) == 2 and "node_pools" in told[0] and "memory" in "".join(told)


@pytest.mark.parametrize("written", ["", "backend: k8s\n", "backend: local\n", "backend: {k8s: }\n"])
def test_a_cluster_and_single_settings_are_chosen_on_top(written: str) -> None:
    changes = {"backend": "k8s", "backend.k8s.image": "x", "backend.k8s.env": {"A": "b"}}
    assert parse_recipe(GOOD + written, overrides=changes).kubernetes == Kubernetes(image="x", env={"A": "b"})


def test_choosing_a_cluster_by_name_keeps_the_settings_and_choosing_this_machine_drops_them() -> None:
    text = GOOD + "backend: {k8s: {image: x}}\n"
    assert parse_recipe(text, overrides={"backend": "k8s"}).kubernetes == Kubernetes(image="x")
    assert parse_recipe(text, overrides={"backend": "local"}).kubernetes is None


def test_recipes_of_older_versions_are_read() -> None:
    plain: dict[str, Any] = msgspec.to_builtins(parse_recipe(GOOD))
    assert plain["backend"] == "local"
    assert msgspec.convert(plain, Recipe).kubernetes is None


@given(
    st.builds(
        Kubernetes,
        image=st.just("x"),
        env=st.dictionaries(st.sampled_from(["A", "B"]), st.sampled_from(["1", "yes", "", "text"])),
        python_path=st.lists(st.just("/opt/code")),
        storage_size=st.integers(LEAST_MEMORY, MOST_MEMORY),
        tolerations=st.lists(st.just({"operator": "Exists"})),
    )
)
def test_a_resolved_recipe_is_read_back(settings: Kubernetes) -> None:
    recipe = parse_recipe(GOOD, overrides={"backend": {"k8s": msgspec.to_builtins(settings)}})
    assert recipe.kubernetes == settings
    assert parse_recipe(resolved_yaml(recipe)) == recipe
    assert msgspec.json.decode(msgspec.json.encode(recipe), type=Recipe) == recipe


def problems(text: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, source="r.yaml")
    return caught.value.message.splitlines()


def test_files_of_this_machine_are_refused_with_what_to_do() -> None:
    (line,) = problems(CRITEO + "backend: {k8s: {image: x}}\n")
    assert line.startswith(
        "r.yaml:4: data.train: /data/day.tsv is a file of this machine, which pods don't have: write a URL, or mount"
    )
    (line,) = problems(GOOD + "checkpoint: {directory: cuts}\nbackend: {k8s: {image: x}}\n")
    assert line.startswith("r.yaml:5: checkpoint.directory: cuts is a directory of this machine")


def test_files_of_mounted_volumes_arent_looked_for_here() -> None:
    parse_recipe(CRITEO + MOUNTED)
    parse_recipe(GOOD + "checkpoint: {directory: /data/cuts}\n" + MOUNTED)
    assert len(problems(CRITEO.replace("/data/", "/datum/") + MOUNTED)) == 1


def test_a_node_may_be_larger_than_this_machine() -> None:
    huge = "resources: {worker: {count: 1, cores: 1, memory: 900GiB}}\n"
    here = Resources(2, GIB)
    assert len(problems_with(GOOD + huge, here)) == 1
    assert problems_with(GOOD + huge + "backend: {k8s: {image: x}}\n", here) == []


def problems_with(text: str, machine: Any) -> list[str]:
    try:
        parse_recipe(text, machine=machine)
    except RecipeError as error:
        return error.message.splitlines()
    return []
