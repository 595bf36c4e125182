#!/bin/sh
# torchx 0.7.0: `torchx list -s slurm` ends with "TypeError: unhashable type: 'list'" on Slurm 24.11, whose
# `sacct --json` has a job's current state as a list of words; with the text of 22.05 it works. `torchx run` and its
# wait are not concerned. Seen with torchx 0.7.0 and a stand-in for sacct that prints what Slurm 22.05.8 and 24.11.5
# print. This script ends with 0 as long as it is so, and with 1 when it changes.
set -eu
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet --disable-pip-version-check torchx==0.7.0
mkdir "$work/bin"
cat >"$work/bin/sacct" <<'END'
#!/bin/sh
printf '{"jobs": [{"job_id": 6, "name": "sh-0", "state": {"current": %s, "reason": "None"}}]}\n' "$CURRENT"
END
chmod +x "$work/bin/sacct"
seen() {  # seen RELEASE STATE: the last line of `torchx list` and its status
    status=0; CURRENT=$2 PATH="$work/bin:$PATH" "$work/tools/bin/torchx" list -s slurm >"$work/out" 2>&1 || status=$?
    printf '%s: status %s, %s\n' "$1" "$status" "$(tail -1 "$work/out" | tr -s ' ' | sed 's/ *$//')"
}
output=$(seen 22.05.8 '"COMPLETED"'; seen 24.11.5 '["COMPLETED"]')
echo "$output"
wanted="22.05.8: status 0, slurm://torchx/6 SUCCEEDED
24.11.5: status 1, TypeError: unhashable type: 'list'"
[ "$output" = "$wanted" ] && echo "as described" || { echo "this has changed"; exit 1; }
