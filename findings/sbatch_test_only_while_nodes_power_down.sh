#!/bin/bash
# Slurm 22.05.8 (Debian 12): while all nodes of a partition power down, `sbatch --test-only` refuses a job with
# "Requested node configuration is not available", though the same sbatch without it is accepted in the same second, and
# `--test-only` of it is right again as soon as the nodes are off. srun --test-only does the same.
# Its packages are unpacked in a temporary folder, with a munged of its own; nothing is installed. Run it as root on
# Debian 12. It ends with 0 as long as it is so, with 1 when it changes, and with 2 where the packages cannot be had.
set -eu
version=22.05.8-4+deb12u3
work=$(mktemp -d); cd "$work"
end() { for file in "$work"/*.pid; do [ ! -e "$file" ] || kill "$(cat "$file")" 2>/dev/null || :; done; sleep 1; rm -rf "$work"; }
trap end EXIT
chmod 755 "$work"
apt-get download -qq "slurmctld=$version" "slurm-client=$version" "slurm-wlm-basic-plugins=$version" munge libmunge2 \
    >/dev/null 2>&1 || { echo "the packages of $version cannot be had here"; exit 2; }
for file in *.deb; do dpkg -x "$file" root; done
lib=$work/root/usr/lib/x86_64-linux-gnu
export LD_LIBRARY_PATH=$lib/slurm-wlm:$lib PATH=$work/root/usr/sbin:$work/root/usr/bin:$PATH SLURM_CONF=$work/slurm.conf
mkdir -m 755 munge state; head -c 128 /dev/urandom >munge/key; chmod 400 munge/key
munged --force --key-file=munge/key --socket=munge/socket --pid-file="$work/munged.pid" --log-file=munge/log \
    --seed-file=munge/seed >/dev/null 2>&1
port=$((20000 + $$ % 20000))
cat >slurm.conf <<CONF
ClusterName=find
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge/socket
PluginDir=$lib/slurm-wlm
StateSaveLocation=$work/state
SlurmctldPidFile=$work/slurmctld.pid
SlurmctldLogFile=$work/log
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ProctrackType=proctrack/linuxproc
SuspendProgram=/bin/true
ResumeProgram=/bin/true
SuspendTime=600
SuspendTimeout=20
ResumeTimeout=600
NodeName=m[0-1] CPUs=2 RealMemory=1000 Port=$((port + 2)) NodeAddr=127.0.0.1 State=CLOUD
PartitionName=debug Nodes=m[0-1] Default=YES
CONF
slurmctld -c
for _ in $(seq 60); do scontrol ping 2>/dev/null | grep -q UP && break; sleep 0.5; done
state() { sinfo -h -n m0 -o %t 2>&1; }
until_state() { for _ in $(seq 120); do case "$(state)" in $1) return 0 ;; esac; sleep 0.5; done; echo "nodes stay $(state)"; tail -5 log; exit 2; }
asked() { ("$@" 2>&1 || :) | sed 's/Job [0-9]* to start at [^ ]*/Job N to start at T/; s/Submitted batch job [0-9]*/accepted/' | grep -v '^$' | tail -1; }
echo "slurm $(slurmctld -V | cut -d' ' -f2)"
until_state "idle~"; off=$(asked sbatch --test-only --wrap true); echo "off: $off"
scontrol update NodeName=m[0-1] State=POWER_UP; until_state "*#"
scontrol update NodeName=m[0-1] State=POWER_DOWN_FORCE; until_state "*%"
tested=$(asked sbatch --test-only --wrap true); given=$(asked sbatch --hold --wrap true); step=$(asked srun --test-only true)
echo "$(state): sbatch --test-only: $tested"; echo "$(state): srun --test-only: $step"; echo "$(state): sbatch: $given"
during=$(state)
until_state "idle~"; later=$(asked sbatch --test-only --wrap true); echo "off again: $later"
kill "$(cat slurmctld.pid)"; for _ in $(seq 60); do [ -e slurmctld.pid ] || break; sleep 0.5; done
case "$off|$tested|$step|$given|$during|$later" in
*"to start at T"*"|"*"configuration is not available"*"|"*"configuration is not available"*"|accepted|"*"%|"*"to start at T"*) echo "as described" ;;
*) echo "this has changed"; exit 1 ;;
esac
