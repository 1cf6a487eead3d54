"""Commands on a whole store: backup, restore, rebuild, repair."""
