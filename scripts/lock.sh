#!/bin/sh
# Writes requirements/*.lock from pyproject.toml (versions and hashes for every platform, no registry host, no path), and the lock
# beside every pom: the SHA-256 of every jar. Usage: lock.sh PYTHON [--upgrade]
#
# 1. Put uv into a scratch environment (it is no dependency of the project), by its own lock, unless UV names one.
# 2. Resolve the server lock first; the others are held to its versions, so that they can be installed together. RocketMQ's
#    client is installed apart from everything. build.lock is what builds the project, pip included.
# 3. Refuse a lock that names a host or a path of this machine.
# 4. Jars: what the poms ask for, fetched anew. A version in a pom is raised by hand.
set -eu

python=$1
shift
cd "$(dirname "$0")/.."

# 1.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if [ -z "${UV:-}" ]; then
    "$python" -m venv "$scratch/uv"
    "$scratch/uv/bin/python" -m pip install --disable-pip-version-check --quiet --retries 8 --require-hashes -r requirements/lock.lock
    UV=$scratch/uv/bin/uv
fi

# 2.
compile() {
    output=$1
    shift
    "$UV" pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" --no-emit-package escrow-mq \
        --output-file "requirements/$output" "$@"
    echo "requirements/$output: $(grep -c '^[a-z0-9].*==' "requirements/$output") packages"
}
compile server.lock "$@"
compile tracing.lock --extra tracing --constraints requirements/server.lock "$@"
compile kafka.lock --extra kafka --constraints requirements/server.lock "$@"
compile dev.lock --extra kafka --extra tracing --group dev --constraints requirements/server.lock "$@"

compile rocketmq-client.lock --group rocketmq-client "$@"
compile build.lock --group build "$@"
compile lock.lock --group lock "$@"

# 3.
if grep -nE '://|@ |(^|[ =])/|--index|--find-links' requirements/*.lock; then
    echo "escrow: the lines above name a host or a path; a lock may not" >&2
    exit 1
fi

# 4.
command -v mvn >/dev/null 2>&1 || { echo "escrow: there is no mvn: the locks of the jars are as they were" >&2; exit 1; }
for pom in $(git ls-files '*pom.xml'); do
    sh scripts/jars.sh "$pom" "$scratch/jars" >"$scratch/lock"
    mv "$scratch/lock" "${pom%.xml}.lock"
    echo "${pom%.xml}.lock: $(wc -l <"${pom%.xml}.lock") jars"
done
