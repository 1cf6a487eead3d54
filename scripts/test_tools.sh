#!/bin/sh
# Installs the Debian packages that tests need besides Python, where it may. Usage: test_tools.sh [--list]
#
# 1. What is missing? Nothing: done, in a few milliseconds.
# 2. May we install? As root, or with a sudo that asks for no password, and where there is apt-get.
# 3. Install. Where that fails or may not be done, say so in one line and end with 0: the tests that need it are skipped and
#    say why; with CI=true they fail (tests/support/tools.py).
set -eu

# program it must bring : package. A program that is not on the PATH is looked for in /usr/lib/postgresql/*/bin too.
tools="
chromium:chromium
curl:curl
initdb:postgresql
fish:fish
javac:openjdk-17-jdk-headless
kcat:kcat
mvn:maven
npm:npm
openssl:openssl
promtool:prometheus
wrk:wrk
zsh:zsh
"

have() {
    command -v "$1" >/dev/null 2>&1 && return 0
    for directory in /usr/lib/postgresql/*/bin; do
        [ -x "$directory/$1" ] && return 0
    done
    return 1
}

# 1.
packages=
for tool in $tools; do
    have "${tool%%:*}" || packages="$packages ${tool#*:}"
done
[ "${1:-}" = --list ] && { echo $packages; exit 0; }
[ -n "$packages" ] || exit 0

# 2.
if ! command -v apt-get >/dev/null 2>&1; then
    echo "escrow: some tests need:$packages; install them, or those tests are skipped" >&2
    exit 0
elif [ "$(id -u)" = 0 ]; then
    as_root=
elif sudo -n true 2>/dev/null; then
    as_root="sudo -n"
else
    echo "escrow: some tests need:$packages; run: sudo apt-get install$packages (otherwise they are skipped)" >&2
    exit 0
fi

# 3. No cluster is made and no service started by the package: tests start their own. A policy that forbids it for the time being
#    counts for every way in which a package may start one; where there is a policy already, it is left alone.
echo "Installing for the tests:$packages"
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap '$as_root rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' | $as_root tee "$policy" >/dev/null
    $as_root chmod 755 "$policy"
fi
install() {
    $as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
        apt-get install --yes --quiet --no-install-recommends -o Dpkg::Use-Pty=0 $packages >/dev/null
}
install || { $as_root apt-get update --quiet >/dev/null && install; } ||
    echo "escrow: could not install$packages; the tests that need them are skipped, or fail with CI=true" >&2
