"""The subcommands of `kaudit`, a file each."""
