#!/bin/sh
# tools.sh DIRECTORY: brings what the tests drive but PyPI does not carry, from Debian's packages: Chromium, installed where we are
# root, and Prometheus with promtool, unpacked into DIRECTORY without being installed or started; and from npm Grafana's types,
# installed into DIRECTORY. What cannot be had is said here; the tests that need it are skipped with their reason.
set -eu

tools=$1

apt() { DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 "$@" >/dev/null; }
have_apt() { command -v apt-get >/dev/null && command -v dpkg >/dev/null; }
is_root() { [ "$(id -u)" = 0 ]; }

# Package lists are fetched once, and only if something is missing.
updated=no
update_lists() {
    [ "$updated" = yes ] && return
    updated=yes
    is_root || return 0
    apt update || echo "apt-get update failed; going on with the lists that are there."
}

# Each candidate is run: Ubuntu's chromium-browser only says that there is a snap. tests/support/chromium.py looks the same way.
chromium_runs() {
    for name in chromium chromium-browser google-chrome; do
        if command -v "$name" >/dev/null && "$name" --version >/dev/null 2>&1; then return; fi
    done
    return 1
}

bring_chromium() {
    if chromium_runs; then return; fi
    if have_apt && is_root; then
        echo "Installing Chromium for the browser tests (about 100 MB, a minute or two) ..."
        update_lists
        if apt install -y --no-install-recommends chromium && chromium_runs; then return; fi
    fi
    echo "No Chromium: browser tests will be skipped. To have them:" \
        "sudo apt-get install chromium (on Ubuntu: sudo snap install chromium)"
}

bring_prometheus() {
    [ -x "$tools/usr/bin/promtool" ] && [ -x "$tools/usr/bin/prometheus" ] && return
    command -v promtool >/dev/null && command -v prometheus >/dev/null && return
    if have_apt; then
        echo "Unpacking Prometheus for its tests (about 50 MB) ..."
        update_lists
        download=$(mktemp -d)
        trap 'rm -rf "$download"' EXIT
        # APT::Sandbox::User=root: else apt warns that its own user cannot write into our folder.
        if (cd "$download" && apt -o APT::Sandbox::User=root download prometheus); then
            mkdir -p "$tools"
            if dpkg -x "$download"/prometheus_*.deb "$tools"; then return; fi
        fi
    fi
    echo "No Prometheus: tests with promtool will be skipped. To have them: sudo apt-get install prometheus"
}

# The packages of tests/grafana_types, as its lock file pins them; again when that changes.
bring_grafana_types() {
    from=$(dirname "$0")/../grafana_types
    to=$tools/grafana_types
    if [ -e "$to/node_modules/.package-lock.json" ] && [ "$(cat "$to/package-lock.json")" = "$(cat "$from/package-lock.json")" ]; then return; fi
    if ! command -v npm >/dev/null && have_apt && is_root; then
        echo "Installing Node.js and npm for the checks of the dashboards ..."
        update_lists
        apt install -y --no-install-recommends nodejs npm || true
    fi
    if command -v npm >/dev/null; then
        echo "Installing Grafana's types (about 30 MB) ..."
        mkdir -p "$to"
        cp "$from/package.json" "$from/package-lock.json" "$to"
        if (cd "$to" && npm ci --ignore-scripts --no-audit --no-fund --silent); then return; fi
        rm -rf "$to"
    fi
    echo "No Grafana types: the dashboards are not held against them. To have them: sudo apt-get install nodejs npm, and make test"
}

bring_chromium
bring_prometheus
bring_grafana_types
