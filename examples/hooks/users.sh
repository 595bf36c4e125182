#!/bin/sh
# Makes ordinary users: without sudo, with the same number on every machine, and with a home folder in the shared /home.
# The role is `all`, because each machine must know the users. Homes and keys are made on the controller only.
#
# Arguments: users as NAME:UID or NAME:UID:SSH PUBLIC KEY. A user with several keys has an argument for each.
set -eu
PATH=/usr/sbin:/usr/bin:/sbin:/bin
LC_ALL=C
export PATH LC_ALL
newline='
'

# fail WHAT WHY: ends the script with one message.
fail() {
    echo "$1: $2" >&2
    exit 1
}

# field DATABASE KEY NUMBER: a field of the entry that this machine has for a name or number, or nothing.
field() {
    getent "$1" "$2" | cut -d: -f"$3"
}

# parse ARGUMENT: sets name, uid, key and home. `shown` is the argument without its key.
parse() {
    case "$1" in
    *:*) ;;
    *) fail "$1" "a user is written as NAME:UID or NAME:UID:SSH PUBLIC KEY" ;;
    esac
    rest=${1#*:}
    name=${1%%:*} uid=${rest%%:*} key=''
    shown=$name:$uid home=/home/$name
    case "$name" in
    '' | [!a-z_]* | *[!a-z0-9_-]*)
        fail "$shown" "a name has only a to z, 0 to 9, _ and -, and begins with a letter or _" ;;
    # The groups of these names give rights, or the images have such users.
    root | admin | adm | sudo | wheel | disk | shadow | docker | lxd | incus | libvirt | ubuntu | debian)
        fail "$shown" "the name $name has a meaning for the system: choose another one" ;;
    esac
    [ "${#name}" -le 32 ] || fail "$shown" "a name has at most 32 characters"
    # Numbers above 60000 belong to the system, and to the user namespaces of other users (/etc/subuid).
    case "$uid" in
    [1-9][0-9][0-9][0-9] | [1-5][0-9][0-9][0-9][0-9] | 60000) ;;
    *) fail "$shown" "the number of a user is from 1000 to 60000" ;;
    esac
    case "$rest" in
    *:*)
        key=${rest#*:}
        case "$key" in
        *"$newline"*) fail "$shown" "an SSH public key is one line" ;;
        esac
        printf '%s\n' "$key" | ssh-keygen -l -f - >/dev/null 2>&1 ||
            fail "$shown" "ssh-keygen reads no public key in what follows the second colon" ;;
    esac
}

# check: ends the script if somebody else on this machine has the name or the number.
check() {
    number=$(field passwd "$name" 3)
    [ "${number:-$uid}" = "$uid" ] || fail "$shown" "the user $name has the number $number on this machine"
    other=$(field passwd "$uid" 1)
    [ "${other:-$name}" = "$name" ] || fail "$shown" "the number $uid is the user $other's on this machine"
    number=$(field group "$name" 3)
    [ "${number:-$uid}" = "$uid" ] || fail "$shown" "the group $name has the number $number on this machine"
    other=$(field group "$uid" 1)
    [ "${other:-$name}" = "$name" ] || fail "$shown" "the number $uid is the group $other's on this machine"
    folder=$(field passwd "$name" 6)
    [ "${folder:-$home}" = "$home" ] || fail "$shown" "the user $name has the home folder $folder on this machine"
    if [ "$SLURM_STACKS_ROLE" = controller ] && [ -e "$home" ]; then
        number=$(stat -c %u "$home")
        [ "$number" = "$uid" ] || fail "$shown" "$home belongs to the number $number: give the user this number"
    fi
}

# fill_home: adds keys to the home folder, as the user, because root would follow the user's links there.
# With the key id_slurm_stacks, which is made here, the cluster's other machines let the user in.
fill_home() {
    timeout 60 setpriv --reuid "$uid" --regid "$uid" --init-groups --reset-env /bin/sh -euc '
        cd "$1"
        [ -z "$4" ] || cp -r /etc/skel/. .
        umask 077
        mkdir -p .ssh
        cd .ssh
        own=id_slurm_stacks
        if [ ! -e "$own.pub" ]; then
            rm -f "$own"
            ssh-keygen -q -t ed25519 -N "" -C "$2@cluster" -f "$own" </dev/null
        fi
        for line in "$(cat "$own.pub")" "$3"; do
            if [ -n "$line" ] && ! grep -qxF -e "$line" authorized_keys 2>/dev/null; then
                [ -z "$(tail -c 1 authorized_keys 2>/dev/null)" ] || echo >>authorized_keys
                printf "%s\n" "$line" >>authorized_keys
            fi
        done
    ' users "$home" "$name" "$key" "$new"
}

mountpoint -q /home || fail /home "no file system is mounted there, so the machines of this cluster share no homes"
for user in "$@"; do
    parse "$user"
    check
done
for user in "$@"; do
    parse "$user"
    check
    [ -n "$(field group "$name" 3)" ] || groupadd --gid "$uid" "$name"
    [ -n "$(field passwd "$name" 3)" ] ||
        useradd --uid "$uid" --gid "$uid" --home-dir "$home" --no-create-home --shell /bin/bash "$name"
    if [ "$SLURM_STACKS_ROLE" = controller ]; then
        new=
        if [ ! -e "$home" ]; then
            install -d -m 700 -o "$uid" -g "$uid" "$home"
            new=yes
        fi
        # No user can stop the controller's boot by what is in a home folder.
        fill_home || echo "$shown: the keys were not written into $home/.ssh" >&2
    fi
    echo "the user $name has the number $uid"
done
