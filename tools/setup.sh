#!/usr/bin/env bash
# Make .venv with the packages of one extra (demo, dist or test) and, but for dist, see to it that Java 17+ is there.
# Usage: tools/setup.sh demo|dist|test    (called by the Makefile; safe to run again)
set -euo pipefail
extra=${1:?which extra: demo, dist or test}
cd "$(dirname "$0")/.."

note() { printf 'setup: %s\n' "$*" >&2; }
die() { note "$*"; exit 1; }

as_root() {  # runs the words as root if that takes no password; fails otherwise
    if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then sudo -n "$@"; else return 1; fi
}

install_system() {  # install_system WHAT DEBIAN-PACKAGE FEDORA-PACKAGE BREW-PACKAGE
    local what=$1 deb=$2 rpm=$3 brew=$4
    if command -v apt-get >/dev/null; then
        note "installing $what ($deb) with apt-get"
        as_root env DEBIAN_FRONTEND=noninteractive sh -c "apt-get update -q && apt-get install -qy --no-install-recommends $deb" >&2 && return 0
        die "$what is missing. Type: sudo apt-get install $deb"
    elif command -v dnf >/dev/null; then
        note "installing $what ($rpm) with dnf"
        as_root dnf install -qy "$rpm" >&2 && return 0
        die "$what is missing. Type: sudo dnf install $rpm"
    elif command -v brew >/dev/null; then
        note "installing $what ($brew) with brew"
        brew install -q "$brew" >&2 && return 0
        die "$what is missing. Type: brew install $brew"
    fi
    die "$what is missing, and no package manager was found that could install it. Install it and run this again."
}

find_python() {
    local name
    for name in ${PYTHON:-} python3.13 python3.12 python3.11 python3 python; do
        if command -v "$name" >/dev/null && "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$name"; return 0
        fi
    done
    die "no Python 3.11 or newer was found (looked for python3.13, 3.12, 3.11, python3). Install one, or name it: make PYTHON=/path/to/python"
}

java_major() {  # prints the major version of the Java that would be run, or nothing
    local java=java
    [ -n "${JAVA_HOME:-}" ] && [ -x "$JAVA_HOME/bin/java" ] && java=$JAVA_HOME/bin/java
    "$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1
}

if [ ! -x .venv/bin/python ] || ! .venv/bin/python -c 'import pip' 2>/dev/null; then
    python=$(find_python)
    note "making .venv with $python"
    if ! "$python" -m venv .venv 2>/dev/null; then
        rm -rf .venv
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        install_system "Python's venv module" "python$version-venv" python3 python3
        "$python" -m venv .venv
    fi
fi

if [ "$extra" != dist ]; then
    major=$(java_major || true)
    if [ -z "$major" ] || [ "$major" -lt 17 ]; then
        note "Java 17 or newer is needed (for ZooKeeper and Spark); found: ${major:-none}"
        install_system "Java 17" openjdk-17-jre-headless java-17-openjdk-headless openjdk@17
        major=$(java_major || true)
        [ -n "$major" ] && [ "$major" -ge 17 ] || die "the Java on the PATH is still not 17 or newer: set JAVA_HOME to one that is"
    fi
fi

if [ "$extra" = test ]; then  # a peer, never a dependency: tests and benchmarks beside it do without where it cannot be had
    fetched=$(mktemp)
    # With the standard library alone, so beside pip: Maven waits for the network, pip computes.
    timeout 240 .venv/bin/python -m benchmarks.apache >"$fetched" 2>&1 &
    fetch=$!
    trap 'kill "$fetch" 2>/dev/null || true; rm -f "$fetched"' EXIT
fi
note "installing Python packages [$extra] into .venv (about a minute the first time)"
# --no-compile: most modules are never imported, and Python compiles those that are. It halves the processor time of pip.
.venv/bin/python -m pip install -q --disable-pip-version-check --no-compile -e ".[$extra]"
if [ "$extra" = test ]; then
    wait "$fetch" || true
    peer=$(tail -n 1 "$fetched")
    note "Apache Kafka to test against: ${peer:-not fetched within 240 s}"
fi
note "ready: .venv${major:+, Java $major}"
