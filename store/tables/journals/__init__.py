"""Tables that are journals (`store.io.journal`): names, consumers, audit. Any room may read them; each has one writer."""
