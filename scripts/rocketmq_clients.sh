#!/bin/sh
# Puts RocketMQ's own clients, unmodified, where tests/rocketmq finds them: .clients/. Usage: rocketmq_clients.sh PYTHON [server]
#
# 1. Python's, into an environment of its own: its protobuf stubs and ours cannot be in one process.
# 2. Java's, from Maven, with the player compiled against it.
# 3. With `server`: a whole RocketMQ too, from Maven, for `make parity-rocketmq`.
# Each is done once, and again when its list or its source changes. Where it cannot be done, one line says why and the end is 0: the
# tests that need it are skipped and say so; with CI=true they fail (tests/support/players.py).
set -eu

python=$1
cd "$(dirname "$0")/.."
mkdir -p .clients

fresh() { # NAME FILE…: is .clients/NAME made from these very files?
    name=$1
    shift
    [ "$(cat ".clients/$name.made" 2>/dev/null)" = "$(cat "$@" | cksum)" ]
}

made() {
    name=$1
    shift
    cat "$@" | cksum >".clients/$name.made"
}

give_up() {
    echo "escrow: $1; the tests with RocketMQ's clients are skipped, or fail with CI=true" >&2
}

jars() { # POM DIRECTORY: fetched, and every jar is the one that the lock beside the pom names
    sh scripts/jars.sh "$1" "$PWD/$2" >".clients/fetched" || return 1
    diff "${1%.xml}.lock" .clients/fetched >&2 && return 0
    echo "escrow: Maven brought other jars than ${1%.xml}.lock names: nothing of them is used" >&2
    rm -rf "$2"
    return 1
}

# 1.
if ! fresh python requirements/rocketmq-client.lock; then
    echo "Fetching RocketMQ's Python client ..."
    if "$python" -m venv --clear .clients/python && .clients/python/bin/python -m pip --disable-pip-version-check --quiet \
        --retries 8 install --require-hashes -r requirements/rocketmq-client.lock; then
        made python requirements/rocketmq-client.lock
    else
        give_up "RocketMQ's Python client could not be installed"
    fi
fi

# 2.
java=tests/rocketmq/java
player=$java/src/main/java/Player.java
if ! command -v mvn >/dev/null 2>&1 || ! command -v javac >/dev/null 2>&1; then
    give_up "mvn or javac is not installed (Debian: apt install maven openjdk-17-jdk-headless)"
    exit 0
fi
if ! fresh java $java/pom.xml $java/pom.lock $player; then
    echo "Fetching RocketMQ's Java client ..."
    if jars $java/pom.xml .clients/java.new && javac -nowarn -cp '.clients/java.new/*' -d .clients/java.new $player; then
        rm -rf .clients/java
        mv .clients/java.new .clients/java
        made java $java/pom.xml $java/pom.lock $player
    else
        give_up "RocketMQ's Java client could not be fetched or compiled"
    fi
fi

# 3.
server=tests/rocketmq/server
if [ "${2:-}" = server ] && ! fresh server $server/pom.xml $server/pom.lock; then
    echo "Fetching a whole RocketMQ ..."
    if jars $server/pom.xml .clients/server; then
        made server $server/pom.xml $server/pom.lock
    else
        give_up "RocketMQ itself could not be fetched"
    fi
fi
