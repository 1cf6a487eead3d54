"""The edge's side of the store: the only writer of logs, `ends`, dedup, names. From outside: `store`, `listing`,
`pending_counts`, `removal`; of the shelves `append` and `recovery` only what their first lines name.
"""
