#!/bin/sh
# uv 0.13.9: the `activate` of an environment made by `uv venv --relocatable` finds its folder in bash, zsh and ksh
# only. In dash, the /bin/sh of Debian and Ubuntu and so of many job scripts, it sets VIRTUAL_ENV to "." and goes on
# with the Python that was first on PATH before; the exit status is 0. Without --relocatable the same line works in dash.
# Seen with uv 0.13.9, dash 0.5.12. This script ends with 0 as long as it is so, and with 1 when it changes.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
command -v dash >/dev/null || { echo "dash is not there"; exit 2; }
python3 -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet --disable-pip-version-check uv==0.13.9
for kind in plain relocatable; do
    option=; [ "$kind" = plain ] || option=--relocatable
    "$work/tools/bin/uv" venv --quiet --no-python-downloads $option "$work/$kind"
done
seen() {  # seen SHELL KIND: VIRTUAL_ENV and the interpreter after activation, relative to the work folder
    cd / && "$1" -c '. "$1/bin/activate" 2>/dev/null; status=$?; printf "%s status %s VIRTUAL_ENV=%s python=%s\n" \
        "$2" "$status" "$VIRTUAL_ENV" "$(python3 -c "import sys; print(sys.prefix)")"' "$1" "$work/$2" "$1, $2:" |
        sed "s|$work/||g; s|python=/.*|python=another|"
}
output=$(for shell in bash dash; do for kind in plain relocatable; do seen "$shell" "$kind"; done; done)
echo "$output"
wanted='bash, plain: status 0 VIRTUAL_ENV=plain python=plain
bash, relocatable: status 0 VIRTUAL_ENV=relocatable python=relocatable
dash, plain: status 0 VIRTUAL_ENV=plain python=plain
dash, relocatable: status 0 VIRTUAL_ENV=. python=another'
[ "$output" = "$wanted" ] && echo "as described" || { echo "this has changed"; exit 1; }
