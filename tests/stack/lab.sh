#!/bin/sh
# lab.sh LAB prepare|test: the stack's test on a Debian machine without Docker, by what LAB (stack-lab) unpacks and stands in for.
#
# `prepare` does what takes long, so that it can run beside other things; `test` does the rest, runs `make test-stack` and ends the engine,
# if it was `prepare` that started it. Needs root.
set -eu

lab=$1
root=$(cd "$(dirname "$0")/../.." && pwd)
ours=$root/.cache/stack-engine-is-ours
bin=$("$lab" tools)
PATH=$bin:$PATH
export PATH
bin=${bin%%:*}

image() { sed -n "s|^ *image: \($1:[^ ]*\)\$|\1|p" "$root/docker-compose.yml" | head -1; }
has() { docker image inspect "$1" >/dev/null 2>&1; }
install() { apt-get install -y -qq --no-install-recommends "$@" >/dev/null; }

# `init: true` asks for an init; the lab's engine only has a link to one.
bring_init() {
    command -v docker-init >/dev/null && return
    install tini || { apt-get update -qq && install tini; }
    ln -sf "$(command -v tini-static)" "$bin/docker-init"
}

# Debian's Alertmanager looks for its templates where its package puts them.
bring_alertmanager() {
    has "$1" && return
    "$lab" alertmanager "$1"
    context=$(mktemp -d)
    cp -r "$bin/../share/prometheus/alertmanager" "$context"
    printf 'FROM %s\nCOPY alertmanager /usr/share/prometheus/alertmanager\n' "$1" >"$context/Dockerfile"
    docker build -q -t "$1" "$context" >/dev/null
    rm -rf "$context"
}

prepare() {
    if ! docker info >/dev/null 2>&1; then
        mkdir -p "$root/.cache"
        touch "$ours"
    fi
    "$lab" engine
    bring_init
    has "$(image python)" || "$lab" python "$(image python)"
    has "$(image prom/prometheus)" || "$lab" prometheus "$(image prom/prometheus)"
    bring_alertmanager "$(image prom/alertmanager)"
}

stop_ours() {
    [ -e "$ours" ] || return 0
    rm -f "$ours"
    "$lab" stop
}

case ${2:-} in
prepare) prepare ;;
test)
    trap stop_ours EXIT
    prepare
    make -C "$root" test-stack
    ;;
*)
    sed -n '2,5p' "$0" >&2
    exit 2
    ;;
esac
