#!/bin/bash
# Slurm 22.05.8 (Debian 12): of a task of a job array that has no --output, squeue tells a StdOut that is nobody's,
# slurm-JOBID.out with the task's own number. slurmd writes slurm-ARRAY_TASK.out, as sbatch's manual says, and
# `scontrol show job` tells that one.
# Its packages are unpacked in a temporary folder, with a munged of its own; nothing is installed. Run it as root on
# Debian 12. It ends with 0 as long as it is so, with 1 when it changes, and with 2 where the packages cannot be had.
set -eu
version=22.05.8-4+deb12u3
work=$(mktemp -d); cd "$work"
end() { for file in "$work"/*.pid; do [ ! -e "$file" ] || kill "$(cat "$file")" 2>/dev/null || :; done; sleep 1; rm -rf "$work"; }
trap end EXIT
chmod 755 "$work"
apt-get download -qq "slurmctld=$version" "slurmd=$version" "slurm-client=$version" "slurm-wlm-basic-plugins=$version" \
    munge libmunge2 >/dev/null 2>&1 || { echo "the packages of $version cannot be had here"; exit 2; }
for file in *.deb; do dpkg -x "$file" root; done
lib=$work/root/usr/lib/x86_64-linux-gnu
export LD_LIBRARY_PATH=$lib/slurm-wlm:$lib PATH=$work/root/usr/sbin:$work/root/usr/bin:$PATH SLURM_CONF=$work/slurm.conf
mkdir -m 755 munge state spool; head -c 128 /dev/urandom >munge/key; chmod 400 munge/key
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
SlurmdSpoolDir=$work/spool
SlurmdPidFile=$work/slurmd.pid
SlurmdLogFile=$work/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
NodeName=m0 NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=$((port + 1))
PartitionName=debug Nodes=m0 Default=YES
CONF
printf 'CgroupPlugin=cgroup/v1\n' >cgroup.conf
slurmctld -c
slurmd -N m0 -d "$(command -v slurmstepd)" || { echo "slurmd does not start"; cat slurmd.log; exit 2; }
job=$(for _ in $(seq 60); do sbatch --parsable --array=1-2 --wrap true 2>/dev/null && break; sleep 0.5; done)
for _ in $(seq 120); do squeue -h -j "$job" -t all -O state | grep -vq COMPLETED || break; sleep 0.5; done
echo "slurm $(slurmctld -V | cut -d' ' -f2), array $job"
told=$(squeue -h -j "$job" -t all -O arraytaskid:8,jobid:8,stdout:200 | sed "s|$work|FOLDER|" | tr -s ' ' | sort)
shown=$(scontrol -o show job "$job" | grep -o 'StdOut=[^ ]*' | sed "s|$work|FOLDER|" | sort | tr '\n' ' ')
written=$(ls slurm-*.out | sort | tr '\n' ' ')
printf 'squeue (task, job, StdOut):\n%s\nscontrol: %s\nwritten: %s\n' "$told" "$shown" "$written"
case "$shown" in "StdOut=FOLDER/slurm-${job}_1.out StdOut=FOLDER/slurm-${job}_2.out ") ;; *) echo "this has changed"; exit 1 ;; esac
case "$written" in "slurm-${job}_1.out slurm-${job}_2.out ") ;; *) echo "this has changed"; exit 1 ;; esac
[ "$(echo "$told" | grep -cE '^[12] ([0-9]+) FOLDER/slurm-\1\.out ?$')" = 2 ] || { echo "this has changed"; exit 1; }
echo "as described"
