"""Commands of `escrow` that need the server: one file a command, as in `escrow.cli`."""
