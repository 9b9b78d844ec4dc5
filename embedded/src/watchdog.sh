# Runs one private server for an owner, and cleans up after both.
#
#   sh -c <this> watchdog <home> <programs> <data> <option of initdb or ''> <argument of postgres>...
#
# Orders arrive on standard input, one on a line. A program that an order ran leaves its status in $home/exit. The owner
# holds the only other end of the input: when the input ends, the owner is gone. Of the shells, any one may be killed.

home=$1 programs=$2 data=$3 sync=$4
shift 4
runner=

# A service manager or a closing terminal may signal all processes. The one that cleans up must end last.
trap '' HUP INT TERM

create() {
    "$programs/initdb" -D "$data" -U postgres -A trust --encoding UTF8 --locale C ${sync:+"$sync"}
    echo $? >"$home/exit"
}

serve() {
    "$programs/postgres" -D "$data" -k "$home" "$@" &
    echo $! >"$home/pid"
    wait $!
    echo $? >"$home/exit"
}

# Signals until the server is gone: a very young server still ignores the signals that this shell ignores.
end() {
    [ -n "$runner" ] || return 0
    while kill -0 "$runner"; do
        [ ! -s "$home/pid" ] || kill -s "$1" "$(cat "$home/pid")"
        sleep 0.01
    done
    wait "$runner"
    runner=
}

watch() {
    while read -r order port; do
        case $order in
        initdb) create </dev/null >"$home/initdb" 2>&1 ;;
        start)
            (
                # For good: a shell that redirects one command keeps what it had, the pipe below too.
                exec </dev/null >>"$home/log" 2>&1
                serve "$@" -p "$port"
            ) &
            runner=$!
            ;;
        stop) end INT ;;
        crash) end QUIT ;;
        esac
    done
    end QUIT
}

# Nothing is written to this pipe: it ends with the shell that takes the orders. If that one was killed, its server
# still runs, which has written no status.
watch "$@" | {
    cat
    while [ ! -s "$home/exit" ] && kill -s QUIT "$(cat "$home/pid")"; do
        sleep 0.01
    done
    rm -rf "$home"
}
cd / && rm -rf "$home"
