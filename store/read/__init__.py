"""Readers over the tables, for any process, beside the writers. Change no byte."""
