"""How the edge finds its state again when it opens. From outside `store.edge`: `journal_heads`, and what `recover` and
`names` tell `store.admin`.
"""
