#!/bin/sh
# venv.sh DIRECTORY [PYTHON]: makes the virtual environment, whole or not at all. A working one is left as it is, unless PYTHON is
# given and is another than it was made with. What is made anew has no packages, and lost the list of them, DIRECTORY/done.
set -eu

venv=$1
wanted=${2:-python3}

# Says which Python it is, the same by its own name, through a shim and within an environment; fails where it is too old.
identity() { "$1" -c 'import sys; print(sys.base_prefix, sys.version); sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
# After an upgrade of Debian the environment's python is another one, without its packages. Asking pip itself takes half a second.
has_pip() { "$1" -c 'import sys, importlib.util; sys.exit(importlib.util.find_spec("pip") is None)' 2>/dev/null; }

# A shim can be on the PATH without a Python behind it, so each candidate is run.
find_python() {
    for candidate in "$wanted" python3 python3.14 python3.13 python3.12 python3.11; do
        if identity "$candidate" >/dev/null; then
            echo "$candidate"
            return
        fi
    done
    found=$("$wanted" --version 2>&1 || true)
    echo "Draftscope needs Python 3.11 or newer, but $wanted is: ${found:-not there}." >&2
    echo "Install one (Debian 12, Ubuntu 24.04: apt-get install python3 python3-venv;" \
        "Ubuntu 22.04: apt-get install python3.11 python3.11-venv), or name it: make PYTHON=python3.12 ..." >&2
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

if present=$(identity "$venv/bin/python") && has_pip "$venv/bin/python"; then
    [ -n "${2:-}" ] || exit 0
    python=$(find_python)
    [ "$(identity "$python")" != "$present" ] || exit 0
else
    python=$(find_python)
fi
[ "$python" = "$wanted" ] || echo "$wanted is not Python 3.11 or newer; using $python instead."
bring_ensurepip
[ ! -d "$venv" ] || echo "$venv belongs to another Python or is broken; it is made anew."
echo "Making $venv with $("$python" --version) ..."
rm -rf "$venv"
"$python" -m venv "$venv" || { rm -rf "$venv"; exit 2; }
