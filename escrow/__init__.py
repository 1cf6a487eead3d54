"""Escrow's public face.

``import escrow`` is the producer and consumer SDK: small, and without any dependency beyond Python. It imports none of
the rooms (``store``, ``checker``, ``sinks``, ``streaming``, ``ingest``): what those need comes with the extra
``escrow[server]``. The SDK is planned; today this package holds the version and the command line (``escrow.cli``).
"""

from importlib.metadata import PackageNotFoundError, version

__all__ = ["__version__"]

try:
    __version__ = version("escrow")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"
