"""Readers over the tables, for any process, beside the writers. They change no byte. From outside: every module."""
