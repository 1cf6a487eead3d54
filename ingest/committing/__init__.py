"""One way into the store for everything the embedded edge writes: cycles that share a flush. From outside: `committer`."""
