#!/bin/sh
# radical.utils 1.103.1: `get_hostlist` pads every number of a range to the width of its last one, so that debug-[8-11]
# becomes debug-08, debug-09, debug-10, debug-11. Slurm pads to the width of the first one, which is none here
# (`scontrol show hostnames`: debug-8 … debug-11). radical.pilot takes its nodes from it. A range that is padded, or
# that stays within one width, is right. Seen with radical.utils 1.103.1.
# This script ends with 0 as long as it is so, and with 1 when it changes.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet --disable-pip-version-check radical.utils==1.103.1
output=$(cd "$work" && HOME="$work" "$work/tools/bin/python" - <<'END'
from radical.utils import get_hostlist
for text in ("debug-[8-11]", "node[08-11]", "gpu-[0-1]"):
    print(text, *get_hostlist(text))
END
)
echo "$output"
wanted='debug-[8-11] debug-08 debug-09 debug-10 debug-11
node[08-11] node08 node09 node10 node11
gpu-[0-1] gpu-0 gpu-1'
[ "$output" = "$wanted" ] && echo "as described" || { echo "this has changed"; exit 1; }
