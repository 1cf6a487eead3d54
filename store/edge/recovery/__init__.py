"""How the edge finds its state again when it opens. From outside `store.edge`: `journal_heads`, and `settled_ends` of
`recover` for backups.
"""
