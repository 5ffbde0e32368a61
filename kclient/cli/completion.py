"""`kclient completion`: the script with which a shell completes commands, options and names."""

from __future__ import annotations

import click

from kclient.cli.commands import with_settings
from kclient.cli.help import Command
from kclient.cli.settings import Settings

_SHELLS = ("bash", "zsh", "fish")


@click.command(cls=Command, examples=("kclient completion bash", "kclient completion fish"))
@click.argument("shell", type=click.Choice(_SHELLS))
@with_settings
def completion(settings: Settings, shell: str) -> None:
    """Print the script that completes commands, options, and names of topics, groups and contexts.

    A line in the start file of the shell activates it: eval "$(kclient completion bash)" in ~/.bashrc (bash 4.4 and
    newer), the same with zsh in ~/.zshrc, and kclient completion fish | source in ~/.config/fish/config.fish.
    """
    from click.shell_completion import get_completion_class

    from kclient.cli.commands import kclient

    found = get_completion_class(shell)
    assert found is not None, "click has all of _SHELLS"
    click.echo(found(kclient, {}, "kclient", "_KCLIENT_COMPLETE").source())
