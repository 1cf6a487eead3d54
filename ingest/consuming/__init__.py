"""Consumer groups: pull, acknowledge, hold, dead letters. From outside: `consumption`, `dead_letters`."""
