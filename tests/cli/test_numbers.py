"""Every number that a command takes has two bounds, and neither NaN nor endless digits get past them."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from dlrover_lite.cli.main import cli


def _commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        with click.Context(command) as context:
            for below in command.list_commands(context):
                found = command.get_command(context, below)
                assert found is not None
                yield from _commands(found, f"{name} {below}".strip())
    else:
        yield name, command


NUMBERS = {
    f"{name} {parameter.name}": parameter
    for name, command in _commands(cli, "")
    for parameter in command.params
    if isinstance(parameter.type, click.types.IntParamType | click.types.FloatParamType)
}


def test_number_options_of_all_commands_are_found() -> None:
    assert {"top interval", "history limit", "data synth zipf_exponent"} <= NUMBERS.keys()


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e300", "9" * 100, "9" * 5000, "-1"])
def test_every_number_option_refuses_absurd_values(name: str, text: str) -> None:
    parameter = NUMBERS[name]
    with pytest.raises(click.BadParameter):
        parameter.type.convert(text, parameter, None)
