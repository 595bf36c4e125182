#!/bin/bash
# Slurm 22.05.8 (Debian 12), select/cons_tres: with `--contiguous` topology/tree is not asked at all, so a job gets nodes of
# two switches that nothing joins, where the same job without it is refused. sbatch(1) tells the opposite: that the tree
# keeps the option from taking effect (in 22.05 for cons_res, in 26.05 for each plugin but topology/flat; 24.11.5 and
# 26.05.5 do as 22.05.8 does).
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
ResumeTimeout=600
TopologyPlugin=topology/tree
NodeName=m[0-3] CPUs=2 RealMemory=1000 Port=$((port + 2)) NodeAddr=127.0.0.1 State=CLOUD
PartitionName=debug Nodes=m[0-3] Default=YES
CONF
printf 'SwitchName=a Nodes=m[0-1]\nSwitchName=b Nodes=m[2-3]\n' >topology.conf
slurmctld -c
for _ in $(seq 60); do scontrol ping 2>/dev/null | grep -q UP && break; sleep 0.5; done
for _ in $(seq 60); do [ "$(sinfo -h -n m0 -o %t 2>&1)" != "idle~" ] || break; sleep 0.5; done
asked() { ("$@" 2>&1 || :) | sed 's/Job [0-9]* to start at [^ ]*/Job N to start at T/' | grep -v '^$' | tail -1; }
echo "slurm $(slurmctld -V | cut -d' ' -f2), switches: a with m[0-1], b with m[2-3]"
two=$(asked sbatch --test-only -N2 --wrap true); echo "-N2: $two"
three=$(asked sbatch --test-only -N3 --wrap true); echo "-N3: $three"
near=$(asked sbatch --test-only -N3 --contiguous --wrap true); echo "-N3 --contiguous: $near"
number=$(sbatch --parsable -N3 --contiguous --wrap true)
for _ in $(seq 120); do given=$(squeue -h -j "$number" -o %N); [ -z "$given" ] || break; sleep 0.5; done
echo "-N3 --contiguous, submitted: nodes $given"
kill "$(cat slurmctld.pid)"; for _ in $(seq 60); do [ -e slurmctld.pid ] || break; sleep 0.5; done
case "$two|$three|$near|$given" in
*"on nodes m["[02]"-"[13]"] "*"|"*"configuration is not available"*"|"*"on nodes m["*"] "*"|m["[01]"-"[23]"]") echo "as described" ;;
*) echo "this has changed"; exit 1 ;;
esac
