"""Commands on a whole store: backup, restore, rebuild, repair. From outside: `backup`, `rebuild`, `repair`."""
