#!/bin/sh
# Says in one line what is missing on this machine, and how to get it. Usage: preflight.sh PYTHON
set -eu

python=$1

stop() {
    echo "escrow: $1" >&2
    exit 1
}

command -v "$python" >/dev/null 2>&1 ||
    stop "$python was not found: install Python 3.11 or newer (Debian: apt install python3 python3-venv; macOS: brew install python), or name it: make PYTHON=/path/to/python3 ..."

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    stop "$("$python" -V 2>&1) is too old: Escrow needs 3.11 or newer; install one and name it: make PYTHON=python3.12 ..."

"$python" -c 'import venv, ensurepip' 2>/dev/null ||
    stop "$python has no venv module: install it (Debian: apt install python3-venv), or name another interpreter: make PYTHON=python3.12 ..."
