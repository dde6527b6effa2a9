#!/bin/sh
# The demo, called by `make demo` in the repository's root: the dashboard first, then the trainer, and an orderly end for both.
#
# Both get sessions of their own, so that Ctrl-C reaches this script alone: it passes the signal to the trainer, waits for its
# checkpoint, and ends the dashboard after it. Should this script be killed outright, the kernel ends both (--pdeathsig).
# Exits with the trainer's status; with 2, before any training, if a port is in use or the dashboard cannot start.
set -u

python=${PYTHON:-.venv/bin/python}
runs=${RUNS:-runs}
dashboard_port=${DASHBOARD_PORT:-8400}
status_port=${STATUS_PORT:-9400}
start_seconds=${START_SECONDS:-30} # for the dashboard to answer
log=.cache/demo-dashboard.log

dashboard=
trainer=
stopping=no
signalled=no

# A shell starts its background jobs with SIGINT ignored; env gives it back, so that Python hears it.
apart() { exec setsid setpriv --pdeathsig TERM env --default-signal=INT "$@"; }

say() { printf '%s\n' "$*" >&2; }

pass_on() {
    stopping=yes
    signalled=yes
    [ -z "$trainer" ] || kill -s "$1" "$trainer" 2>/dev/null
}

end_dashboard() {
    [ -n "$dashboard" ] || return
    kill -s TERM "$dashboard" 2>/dev/null
    waits=0
    while kill -0 "$dashboard" 2>/dev/null && [ "$waits" -lt 50 ]; do
        waits=$((waits + 1))
        sleep 0.1
    done
    kill -s KILL "$dashboard" 2>/dev/null
    wait "$dashboard" 2>/dev/null
}

stop_if_asked() {
    [ "$stopping" = no ] || exit 130
}

# require_free PORT LOWEST WHO SETTING. Port 0, any free one, is for the trainer alone: it says which one it got.
require_free() {
    "$python" - "$1" "$2" <<'END' && return
import socket, sys
with socket.socket() as probe:
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        port, lowest = map(int, sys.argv[1:])
        if port < lowest:
            sys.exit(1)
        probe.bind(("127.0.0.1", port))
    except (OSError, OverflowError, ValueError):
        sys.exit(1)
END
    stop_if_asked
    say "Port $1 is in use or is no port, so the $3 cannot have it. Choose another: make demo $4=PORT"
    exit 2
}

fail_to_start() {
    say "$1"
    cat "$log" >&2
    exit 2
}

answers() { "$python" -c 'import socket, sys; socket.create_connection(("127.0.0.1", int(sys.argv[1])), 1)' "$1" 2>/dev/null; }

start_dashboard() {
    mkdir -p .cache "$runs" || exit 2
    apart "$python" -m dashboard --runs "$runs" --port "$dashboard_port" >"$log" 2>&1 &
    dashboard=$!
    deadline=$(($(date +%s) + start_seconds))
    until answers "$dashboard_port"; do
        stop_if_asked
        kill -0 "$dashboard" 2>/dev/null || fail_to_start "The dashboard did not start:"
        [ "$(date +%s)" -lt "$deadline" ] || fail_to_start "The dashboard has not answered for $start_seconds s. Its log, $log:"
        sleep 0.2
    done
}

# A signal that we trap ends `wait` early, so wait again until the trainer itself has ended.
await_trainer() {
    status=0
    while :; do
        signalled=no
        wait "$trainer"
        code=$?
        [ "$code" = 127 ] || status=$code # 127: its end was reported before
        [ "$signalled" = yes ] || return
    done
}

linger() {
    say "The run is over. The dashboard stays at http://127.0.0.1:$dashboard_port until Ctrl-C."
    while [ "$stopping" = no ] && kill -0 "$dashboard" 2>/dev/null; do sleep 1; done
}

trap 'pass_on INT' INT
trap 'pass_on TERM' TERM HUP
trap end_dashboard EXIT

require_free "$dashboard_port" 1 dashboard DASHBOARD_PORT
require_free "$status_port" 0 trainer STATUS_PORT
start_dashboard
stop_if_asked
say "Dashboard: http://127.0.0.1:$dashboard_port   (Ctrl-C ends it and the training, with a checkpoint)"

apart "$python" -m trainer train --config trainer/demo/config.toml --runs "$runs" --watch.port "$status_port" "$@" &
trainer=$!
[ "$stopping" = no ] || kill -s TERM "$trainer" # asked between the two lines above
await_trainer
if [ "$status" = 0 ] && [ "$stopping" = no ] && [ -t 0 ] && [ -t 1 ]; then linger; fi
say "Ended. To look again: $python -m dashboard --runs '$runs'"
exit "$status"
