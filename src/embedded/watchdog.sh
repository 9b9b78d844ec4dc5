# Runs one private server for an owner, and cleans up after both.
#
#   sh -c <this> watchdog <home> <programs> <data> <option of initdb or ''> <argument of postgres>...
#
# Orders arrive on standard input, one on a line. A program that an order ran leaves its status in $home/exit. The owner
# holds the only other end of the input: when the input ends, the owner is gone.

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

while read -r order port; do
    case $order in
    initdb) create </dev/null >"$home/initdb" 2>&1 ;;
    start)
        serve "$@" -p "$port" </dev/null >>"$home/log" 2>&1 &
        runner=$!
        ;;
    stop) end INT ;;
    crash) end QUIT ;;
    esac
done

end QUIT
cd / && rm -rf "$home"
