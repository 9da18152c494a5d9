#!/bin/sh
# Makes .venv ready for the Makefile: sh tools/setup.sh CHECKOUT [PYTHON]
#
# CHECKOUT/.venv/.ready is written last and holds the checkout's path. Where it is missing, or names another place (a
# moved or copied checkout: console scripts hold absolute paths), the environment is made anew; where it is only older
# than pyproject.toml or constraints.txt, packages are brought up to date in place.
set -eu

checkout=$1
chosen=${2:-}
torch_index=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
cd "$checkout"

say() { printf '==> %s\n' "$*"; }
give_up() { printf '%s\n' "$*" >&2; exit 1; }

# Prints a command's Python version if it is one we support (a pyenv shim may exist and yet not run).
supported() {
    "$1" -c 'import sys; v = sys.version_info[:2]; print("%d.%d" % v); sys.exit(not (3, 11) <= v <= (3, 13))' 2>/dev/null
}
has_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

find_python() {
    without_venv=
    for candidate in ${chosen:+"$chosen"} $([ -n "$chosen" ] || echo python3.11 python3.12 python3.13 python3); do
        version=$(supported "$candidate") || continue
        if has_venv "$candidate"; then
            python=$candidate
            return
        fi
        without_venv=${without_venv:-$version}
    done
    [ -z "$without_venv" ] || give_up "Python $without_venv has no venv module here: run 'apt install python$without_venv-venv' as root, then make again."
    [ -z "$chosen" ] || give_up "PYTHON=$chosen is not a Python 3.11, 3.12 or 3.13 that runs."
    give_up "No Python 3.11, 3.12 or 3.13 found: run 'apt install python3 python3-venv' as root (Debian 12, Ubuntu 24.04), or name one: make PYTHON=/path/to/python"
}

pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }

# The CPU build, from wherever pip is configured to look, else from PyTorch's index; its dependencies come with the rest.
install_torch() {
    torch=$(.venv/bin/python - <<'PY'
import re, sys, platform
cpu_build = sys.platform == "linux" and platform.machine() == "x86_64"
pins = re.findall(r"^(torch==[^ ;\n]+)", open("constraints.txt").read(), re.M)
print(next(pin for pin in pins if pin.endswith("+cpu") == cpu_build))
PY
    )
    say "PyTorch: $torch"
    version=${torch#torch==}
    case $version in
        *+cpu)
            if [ "$(.venv/bin/python -c 'from importlib.metadata import version; print(version("torch"))' 2>/dev/null)" = "$version" ]; then
                return
            fi
            if pip index versions torch 2>/dev/null | grep -qF "$version"; then
                pip install --only-binary :all: --no-deps "$torch"
            else
                say "(not among pip's configured sources: from $torch_index)"
                pip install --only-binary :all: --no-deps --index-url "$torch_index" "$torch" ||
                    give_up "$torch could not be had from $torch_index: see above. TORCH_INDEX=URL names a mirror, PIP_FIND_LINKS=DIRECTORY a place that holds the wheel."
            fi ;;
        *) pip install --only-binary :all: --no-deps "$torch" ;;
    esac
}

quiet=
if [ -x .venv/bin/python ] && .venv/bin/python -c '' 2>/dev/null && [ "$(cat .venv/.ready 2>/dev/null)" = "$checkout" ]; then
    say "Bringing .venv up to date"
    quiet=-q
    rm .venv/.ready
else
    find_python
    say "New environment in .venv with Python $version ($python)"
    rm -rf .venv
    "$python" -m venv .venv
fi
install_torch
say "dlrover-lite and its other dependencies, as constraints.txt pins them"
pip install $quiet --only-binary :all: -c constraints.txt -e '.[dev]'
printf '%s\n' "$checkout" > .venv/.ready
say "Ready"
