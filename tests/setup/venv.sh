#!/bin/sh
# venv.sh DIRECTORY [PYTHON]: makes the virtual environment, whole or not at all. A working one is left as it is.
set -eu

venv=$1
wanted=${2:-python3}

supported() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

# A shim can be on the PATH without a Python behind it, so each candidate is run.
find_python() {
    for candidate in "$wanted" python3 python3.14 python3.13 python3.12 python3.11; do
        if supported "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    found=$("$wanted" --version 2>&1 || true)
    echo "Draftscope needs Python 3.11 or newer, but $wanted is: ${found:-not there}." >&2
    echo "Install one (on Debian 12 or Ubuntu 24.04: apt-get install python3 python3-venv), or name it: make PYTHON=python3.12 ..." >&2
    exit 2
}

# Debian keeps ensurepip in a package of its own.
bring_ensurepip() {
    "$python" -c 'import ensurepip' >/dev/null 2>&1 && return
    package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "Installing $package, which Debian keeps apart from Python ..."
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null && return
    fi
    echo "$python cannot make virtual environments. Install what it lacks: sudo apt-get install $package" >&2
    exit 2
}

if supported "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    exit 0
fi
python=$(find_python)
[ "$python" = "$wanted" ] || echo "$wanted is not Python 3.11 or newer; using $python instead."
bring_ensurepip
echo "Making $venv with $("$python" --version) ..."
rm -rf "$venv"
"$python" -m venv "$venv" || { rm -rf "$venv"; exit 2; }
