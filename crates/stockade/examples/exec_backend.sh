#!/bin/sh
# A backend as a program of its own: namespaces by unshare(1), a root of the host's system directories.
# `stockade tck --exec crates/stockade/examples/exec_backend.sh --only C-10` judges a part of it.
# An example of the protocol, and not of strong walls: no system call filter, and no limits but the engine's.
set -eu
# Where pivot_root is.
PATH=$PATH:/usr/sbin:/sbin
kept=${TMPDIR:-/tmp}/exec-backend-$(id -u)

case $1 in
capabilities)
    by='{"support": "full", "by": "namespaces"}'
    engine='{"support": "full", "by": "the engine"}'
    agent='{"support": "full", "by": "the agent"}'
    cat <<END
{"backend": "exec", "boundary": "shared-kernel", "features": {
    "filesystem-isolation": $by, "process-isolation": $by, "network-isolation": $by, "complete-kill": $by,
    "host-image": $by, "local-workspace": $by, "ephemeral-workspace": $by,
    "wall-time-limit": $engine, "output-limit": $engine,
    "stdin": $agent, "signals": $agent, "terminal": $agent, "file-transfer": $agent
}}
END
    ;;
create)
    id=$2
    # To the end of the line and no further: what follows is the agent's. No path with a quote in it is shown.
    read -r order
    workspace=$(printf '%s' "$order" | sed -n 's/.*"workspace":{"local":"\([^"\\]*\)"}.*/\1/p')
    mkdir -p -m 700 "$kept"
    echo $$ > "$kept/$id"
    # Opened here: the walls have no way to the processes of the host.
    exec 3< "$STOCKADE_AGENT"
    exec unshare --user --map-root-user --mount --pid --net --ipc --uts --fork --kill-child \
        sh -eu -c '
            id=$1 workspace=$2 root=/mnt
            mount -t tmpfs -o mode=755 tmpfs $root
            mkdir $root/workspace $root/proc $root/dev $root/tmp $root/home $root/old
            for dir in usr bin sbin lib lib64; do
                if [ -L /$dir ]; then ln -s "$(readlink /$dir)" $root/$dir
                elif [ -d /$dir ]; then mkdir $root/$dir; mount --bind -o ro /$dir $root/$dir
                fi
            done
            for device in null zero full random urandom; do
                : > $root/dev/$device; mount --bind /dev/$device $root/dev/$device
            done
            if [ -n "$workspace" ]; then mount --bind "$workspace" $root/workspace; fi
            cat <&3 > $root/agent
            chmod 755 $root/agent
            mount -t proc proc $root/proc
            cd $root
            pivot_root . old
            umount -l /old
            exec env -i PATH=/usr/bin:/bin /agent 0 /workspace "$id" 3<&-
        ' enter "$id" "$workspace"
    ;;
destroy)
    # It ends by itself with its pipe; one whose engine has died may still be at it.
    if [ -f "$kept/$2" ]; then
        pid=$(cat "$kept/$2")
        if { tr '\0' ' ' < "/proc/$pid/cmdline"; } 2>/dev/null | grep -q " $2 "; then kill -KILL "$pid"; fi
        rm -f "$kept/$2"
    fi
    ;;
list)
    [ ! -d "$kept" ] || ls "$kept"
    ;;
*)
    echo "unknown verb: $1" >&2
    exit 2
    ;;
esac
