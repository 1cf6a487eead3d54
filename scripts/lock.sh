#!/bin/sh
# Writes requirements/*.lock from pyproject.toml: versions and hashes for every platform, no registry host, no path.
# Usage: lock.sh PYTHON [--upgrade]
#
# 1. Put uv into a scratch environment (it is no dependency of the project), unless UV names one.
# 2. Resolve the server lock first; the others are held to its versions, so that they can be installed together. RocketMQ's
#    client is installed apart from everything.
# 3. Refuse a lock that names a host or a path of this machine.
set -eu

python=$1
shift
cd "$(dirname "$0")/.."

# 1.
if [ -z "${UV:-}" ]; then
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    "$python" -m venv "$scratch"
    "$scratch/bin/python" -m pip install --disable-pip-version-check --quiet --retries 8 'uv==0.13.7'
    UV=$scratch/bin/uv
fi

# 2.
compile() {
    output=$1
    shift
    "$UV" pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
        --output-file "requirements/$output" "$@"
    echo "requirements/$output: $(grep -c '^[a-z0-9].*==' "requirements/$output") packages"
}
compile server.lock --extra server "$@"
compile tracing.lock --extra tracing --constraints requirements/server.lock "$@"
compile kafka.lock --extra kafka --constraints requirements/server.lock "$@"
compile dev.lock --extra server --extra kafka --extra tracing --group dev --constraints requirements/server.lock "$@"

compile rocketmq-client.lock --group rocketmq-client "$@"

# 3.
if grep -nE '://|@ |(^|[ =])/|--index|--find-links' requirements/*.lock; then
    echo "escrow: the lines above name a host or a path; a lock may not" >&2
    exit 1
fi
