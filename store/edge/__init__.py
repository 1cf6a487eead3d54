"""The edge's side of the store: the only writer of logs, `ends`, dedup, names. From outside: `store`,
`listing`, `pending_counts`, `removal`, limits of `encode`, what `recovery` and `journal_heads` tell `store.admin`.
"""
