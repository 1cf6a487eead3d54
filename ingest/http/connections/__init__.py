"""Connections: accepting them, one of them (`protocol`), all of them together (`crowd`), room for them."""
