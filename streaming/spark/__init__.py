"""Spark in embedded mode and its session: source, packed rows, listener, jars, protection of its ports."""
