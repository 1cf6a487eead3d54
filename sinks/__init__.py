"""The sinks room: effects of decisions beyond the store's own files, and the loader of plug-ins.

interfaces.py   what a sink, a check transport, a check listener and a transaction service are
embedded.py     the defaults of the embedded deployment
plugins.py      finds them through entry points
"""
