"""Reading a recipe: YAML in, a ``Recipe`` or one RecipeError with every problem (file, line, key) out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dlrover_lite.core.files.regular import FileTooLarge, NotRegularFile, read_file
from dlrover_lite.core.problems import Place, Problems, nearest
from dlrover_lite.core.units import GIB, MIB, Resources
from dlrover_lite.recipe.checks import ONLY_FOR, section_checks
from dlrover_lite.recipe.cluster_checks import choose_cluster, has_cluster
from dlrover_lite.recipe.schema import Recipe, ResourceLimits
from dlrover_lite.recipe.schema_reader import Walker
from dlrover_lite.recipe.source import Node, Scalar, Section, apply_override, read_mapping, read_text, written_at
from dlrover_lite.recipe.words import found

__all__ = ["load_recipe", "parse_recipe", "place_of", "resolved_yaml"]

LARGEST_FILE_BYTES = MIB


def load_recipe(
    path: str | Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    check_files: bool = True,
    machine: Resources | None = None,
) -> Recipe:
    """Read the recipe in the file at ``path``, with ``overrides`` (dotted key -> value; text is read as YAML) put on top.

    Raises RecipeError with a line for every problem. ``check_files=False`` leaves out what depends on this machine: whether the data and
    model files exist, and whether the extras that the recipe needs are installed. With ``machine``, a node that is to have more memory than
    that is a problem too.
    """
    path = Path(path)
    text = _read(path)
    directory = path.absolute().parent
    return parse_recipe(
        text,
        source=str(path),
        directory=directory,
        overrides=overrides,
        check_files=check_files,
        machine=machine,
    )


_NO_FILE = "recipe"
"""Name, in errors, of a recipe that wasn't in a file."""


def parse_recipe(
    recipe: str | Mapping[str, Any],
    *,
    source: str = _NO_FILE,
    directory: str | Path = ".",
    overrides: Mapping[str, Any] | None = None,
    check_files: bool = True,
    machine: Resources | None = None,
) -> Recipe:
    """Read a recipe from its text, or from plain data. ``source`` names it in errors; relative paths start at ``directory``."""
    problems = Problems()
    place = Place(source)
    root = read_text(recipe, source, problems) if isinstance(recipe, str) else read_mapping(recipe, place, problems)
    if not isinstance(root, Section):
        if not len(problems):
            _not_a_recipe(root, source, problems)
        problems.raise_if_any()
    assert isinstance(root, Section)
    for dotted, value in choose_cluster(root, overrides or {}).items():
        apply_override(root, dotted, value, problems)
    _refuse_newer(root)
    base = Path(directory).absolute()
    written = root.entries.get("directory", Scalar(root.place, "."))
    if isinstance(written, Scalar) and isinstance(written.value, str):
        base /= Path(written.value).expanduser()
        root.entries["directory"] = Scalar(written.place, str(base))
    in_cluster = has_cluster(root)
    checks = section_checks(
        base, check_files=check_files, machine=None if in_cluster else machine, in_cluster=in_cluster
    )
    value = Walker(problems, checks).read(root)
    problems.raise_if_any()
    assert isinstance(value, Recipe)
    return value


def place_of(path: str | Path | None, overrides: Mapping[str, Any], dotted: str) -> Place:
    """Find where the value of a key was written, or the innermost section around it: in the file of a recipe that can be read, or in an
    override. ``path`` None: the recipe wasn't in a file."""
    for name in overrides:
        if name == dotted or dotted.startswith(f"{name}."):
            return Place("", 0, name)
    if path is None:
        return Place(_NO_FILE)
    tree = read_text(_read(Path(path)), str(path), Problems())
    return Place(str(path)) if tree is None else written_at(tree, dotted).place


def _read(path: Path) -> str:
    problems, place = Problems(), Place(str(path))
    content = b""
    try:
        if path.is_dir():
            problems.add(place, "", "this is a directory; name the recipe file in it")
        else:
            content = read_file(path, LARGEST_FILE_BYTES)
    except FileTooLarge:
        problems.add(place, "", "not a recipe: this file is too large for one (a recipe is a short YAML file)")
    except NotRegularFile as error:
        problems.add(place, "", f"not a recipe: {error.strerror}", hint="Write the recipe to a file, and name that.")
    except FileNotFoundError:
        message = "no such file"
        if path.parent.is_dir():
            recipes = [file.name for file in path.parent.iterdir() if file.suffix in (".yaml", ".yml")]
            close = nearest(path.name, recipes)
            message += f"; did you mean {path.with_name(close)}?" if close else ""
        problems.add(place, "", message, hint="`dlrover-lite recipe init FILE` writes a recipe to start from.")
    except OSError as error:
        problems.add(place, "", f"can't be read: {error.strerror}")
    problems.raise_if_any()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problems.add(Place(str(path), line), "", "not a recipe: this isn't UTF-8 text (a recipe is a YAML file)")
        problems.raise_if_any()
        raise


def _not_a_recipe(root: Node | None, source: str, problems: Problems) -> None:
    place = root.place if root is not None else Place(source)
    if root is None or (isinstance(root, Scalar) and root.value is None):
        hint = "`dlrover-lite recipe init FILE` writes a recipe to start from."
        problems.add(place, "", "the recipe is empty", hint=hint)
    else:
        problems.add(place, "", f"expected a section with version, name, model and data; found {found(root)}")


def _refuse_newer(root: Section) -> None:
    """Refuse a recipe of a newer version: what else is wrong with it is for that version to say, so this is the only problem."""
    version = root.entries.get("version")
    if isinstance(version, Scalar) and isinstance(version.value, int) and version.value > 1:
        problems = Problems()
        message = f"version {version.value}: this recipe needs a newer dlrover-lite: pip install --upgrade dlrover-lite"
        problems.add(version.place, "version", message)
        problems.raise_if_any()


def resolved_yaml(recipe: Recipe) -> str:
    """Write the recipe with every default written out, as YAML that ``load_recipe`` reads back to an equal recipe."""
    from ruamel.yaml import YAML
    from ruamel.yaml.compat import StringIO

    dumper = YAML()
    dumper.default_flow_style = False
    dumper.width = 1 << 20  # never fold a text
    text = StringIO()
    dumper.dump(_plain(recipe), text)
    return str(text.getvalue())


def _plain(value: Any) -> Any:
    """Turn a value into plain data, without what was not chosen: fields that are None, or belong to another optimizer or schedule."""
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        fields = {config.tag_field: config.tag} if config.tag_field else {}
        for name in value.__struct_fields__:
            field = getattr(value, name)
            only_for = ONLY_FOR.get(type(value), {}).get(name)
            if only_for is None or value.use in only_for:  # type: ignore[attr-defined]
                fields[name] = _memory(field) if name in ("memory", "storage_size") else _plain(field)
        auto = {"ps": "auto", "worker": "auto"} if isinstance(value, ResourceLimits) else {}
        kept = {name: auto.get(name) if field is None else field for name, field in fields.items()}
        return {name: field for name, field in kept.items() if field is not None}
    return value


def _memory(count: int) -> int | str:
    for suffix, unit in (("GiB", GIB), ("MiB", MIB)):
        if count and count % unit == 0:
            return f"{count // unit}{suffix}"
    return count
