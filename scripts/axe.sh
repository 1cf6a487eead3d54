#!/bin/sh
# Puts axe-core, which looks for barriers in the console's pages, where tests/console finds it: .clients/axe.min.js.
#
# It comes from npm in a fixed version, and is used only if its hash is the one below. Where it cannot be fetched, one line says so
# and the end is 0: the test that needs it is skipped and says why; with CI=true it fails.
set -eu
cd "$(dirname "$0")/.."

version=4.14.0
sha512=f564d9c448ec67b6f5dd31fc24f99b576cfc0876e5f34ff6866dd73c41b826035d40b2bcd480515e64b11df3003a44aa41e4714ffd1dc0d0f3d863a6df3ce971

[ "$(cat .clients/axe.made 2>/dev/null)" = "$version" ] && exit 0
mkdir -p .clients
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! (cd "$work" && npm pack --silent "axe-core@$version") >/dev/null 2>&1; then
    echo "escrow: axe-core could not be fetched with npm; the test of the console's barriers is skipped, or fails with CI=true" >&2
    exit 0
fi
if ! echo "$sha512  $work/axe-core-$version.tgz" | sha512sum --check --status; then
    echo "escrow: npm brought another axe-core than the one named here: it is not used" >&2
    exit 1
fi
tar -xzf "$work/axe-core-$version.tgz" -C "$work" package/axe.min.js
mv "$work/package/axe.min.js" .clients/axe.min.js
echo "$version" >.clients/axe.made
