#!/bin/sh
# Fetches the jars of a pom into a directory of their own, and prints their SHA-256 as the pom's lock has them.
# Usage: jars.sh POM DIRECTORY. The version of Maven's plug-in is that of streaming/spark/jars.py.
set -eu

pom=$1
directory=$2
plugin=$(sed -n 's/^PLUGIN: Final = "\(.*\)"$/\1/p' "$(dirname "$0")/../streaming/spark/jars.py")
rm -rf "$directory"
mvn --quiet --batch-mode --file "$pom" "$plugin:copy-dependencies" -DincludeScope=runtime -DoutputDirectory="$directory" >&2
cd "$directory"
LC_ALL=C
export LC_ALL
sha256sum -- *.jar
