#!/bin/bash
# Lives of a server, or of SQLite, with a log, one after the other, on a file system of its own, in a mount namespace of its own:
# app_lives.sh UNCOPY ROOM APP POLICY SEED LIFE...
#   ROOM   a directory in memory; APP   redis | sqlite-wal | sqlite-delete | sqlite-truncate | sqlite-persist | postgresql
#   LIFE   WHAT:MS:HOW, what happens after MS milliseconds: program (is killed) | part (of it is killed) | keeper (is killed) |
#          both (are killed) | power (is lost) | keeper-power | end (the program is asked to);
#          and how the next one begins: log (that of the program recovers) | plain (after log recover)
set -eu
uncopy=$1 room=$2 name=$3 policy=$4 seed=$5
shift 5
scripts=$(dirname "${BASH_SOURCE[0]}")
# shellcheck source=disk.sh
source "$scripts/disk.sh"
app=${name%-*} mode=${name#*-} journal=$room/journal begin=log syncs=0
touch "$journal"
new_disk "$([ "$app" = postgresql ] && echo 640M || echo 320M)" "mkfs.ext4 -q -F"
mkdir -m 700 "$place/log" "$place/data"
as=(setpriv --pdeathsig KILL)
export PATH=$PATH:/usr/lib/postgresql/15/bin

give_up() {
    echo "$*" >&2
    # What is known of a hang.
    for process in $(family "${program:-}" "${client:-}") $(keepers); do
        echo "--- $process $(tr '\0' ' ' <"/proc/$process/cmdline") $(cat "/proc/$process/wchan" "/proc/$process/syscall" "/proc/$process/stack" 2>&1)"
    done >&2
    tail -n 30 "$room"/{errors,said,said-errors,recovered} >&2
    "$uncopy" log ls "$place/log" >&2
    exit 1
}

# Processes and all that descend from them.
family() {
    local process
    for process in "$@"; do
        [ -d "/proc/$process" ] || continue
        echo "$process"
        # shellcheck disable=SC2046 # numbers
        family $(cat "/proc/$process"/task/*/children 2>/dev/null)
    done
}

case $app in
redis)
    where=$room/socket
    command=(redis-server --port 0 --unixsocket "$where" --dir "$place/data" --save "" --appendonly yes --appendfsync always
        --auto-aof-rewrite-min-size 1mb)
    ;;
sqlite)
    where=$place/data/base
    command=(/usr/bin/python3 "$scripts/apps.py" work sqlite "$where" "$journal" "$seed" "$mode")
    ;;
postgresql)
    where=$room/sockets
    mkdir -m 777 "$where"
    chmod 711 "$room"
    chown 65534:65534 "$place/log" "$place/data"
    as+=(--reuid=65534 --regid=65534 --clear-groups --inh-caps=-all,+sys_ptrace --ambient-caps=+sys_ptrace --bounding-set=-all,+sys_ptrace)
    "${as[@]}" initdb --no-sync --encoding=UTF8 --locale=C --auth=trust --username=tester --wal-segsize=1 -D "$place/data/base" >"$room/initdb" 2>&1
    sync -f "$place"
    command=(postgres -D "$place/data/base" -k "$where" -h "" -c shared_buffers=16MB -c min_wal_size=2MB -c max_wal_size=8MB
        -c autovacuum=off -c dynamic_shared_memory_type=mmap -c checkpoint_timeout=30s)
    ;;
esac

# Starts the program, and who makes transactions, and waits until that has compared what is there.
start() {
    local run=("$uncopy" run --log "$place/log" --log-size 16777216 --policy "$policy" --)
    if [ "$1" = plain ]; then
        run=()
        recover
    fi
    : >"$room/said"
    rm -f "$room/socket"
    # Redis forks for a rewrite, and what was open then takes part no more: not in every life.
    rewrites=$((100 - ${rewrites:-100}))
    if [ "$app" = sqlite ]; then
        "${as[@]}" "${run[@]}" "${command[@]}" >"$room/said" 2>>"$room/errors" &
        program=$!
        client=$program
    else
        [ "$app" != redis ] || command+=(--auto-aof-rewrite-percentage "$rewrites")
        "${as[@]}" "${run[@]}" "${command[@]}" >>"$room/output" 2>>"$room/errors" &
        program=$!
        wait_for listens
        start_client
    fi
    wait_for has_compared
}
start_client() {
    setpriv --pdeathsig KILL /usr/bin/python3 "$scripts/apps.py" work "$app" "$where" "$journal" "$seed" >"$room/said" 2>"$room/said-errors" &
    client=$!
}
listens() {
    [ -d "/proc/$program" ] || give_up "the program has ended"
    if [ "$app" = redis ]; then
        [ "$(redis-cli -s "$where" ping 2>&1)" = PONG ]
    else
        pg_isready -q -h "$where"
    fi
}
has_compared() {
    if grep -q "^checked " "$room/said"; then return 0; fi
    kill -0 "$client" 2>/dev/null || give_up "the client has ended"
    return 1
}
recover() {
    "${as[@]}" "$uncopy" log recover "$@" "$place/log" >>"$room/recovered" 2>&1 || [ "${is_sure:-}" != yes ] || give_up "log recover"
}
acknowledged() { grep -c done "$journal" || true; }
has_gone_on() { [ "$(acknowledged)" -gt "$((before + 2))" ]; }

# Adds up what went by the log, as far as processes are there to be asked.
count_syncs() {
    local process found
    for process in $(family "$program"); do
        found=$("$uncopy" stats "$process" 2>/dev/null | sed -n 's/.*"log_syncs": *\([0-9]*\).*/\1/p')
        syncs=$((syncs + ${found:-0}))
    done
}

# The transactions' maker ends with what it talks to, and has found nothing wrong.
await_client() {
    local status=0
    wait_for has_ended "$client"
    if [ "$client" != "$program" ]; then
        wait "$client" || status=$?
        [ "$status" = 0 ] || give_up "the client ended with $status"
    fi
}
has_ended() { ! kill -0 "$1" 2>/dev/null || grep -q "^State:.Z" "/proc/$1/status"; }

kill_all() {
    # shellcheck disable=SC2046 # numbers
    kill -9 "$@" 2>/dev/null || true
    wait "$program" 2>/dev/null || true
    await_client
}

# shellcheck disable=SC2046,SC2086 # lists of numbers
live() {
    local what=$1 ms=$2 held part status=0
    before=$(acknowledged)
    wait_for has_gone_on
    sleep "$(printf '%d.%03d' $((ms / 1000)) $((ms % 1000)))"
    held=$(keepers)
    count_syncs
    case $what in
    program) kill_all $(family "$program") ;;
    both) kill_all $held $(family "$program") ;;
    keeper)
        kill -9 $held 2>/dev/null || true
        before=$(acknowledged)
        wait_for has_gone_on
        kill_all $(family "$program")
        ;;
    part)
        # The server ends the others, and begins again by itself.
        part=$(family "$program" | tail -n +2 | shuf -n 1)
        kill -9 "$part"
        await_client
        wait_for listens
        start_client
        wait_for has_compared
        before=$(acknowledged)
        wait_for has_gone_on
        kill_all $(family "$program")
        ;;
    power | keeper-power)
        if [ "$what" = keeper-power ]; then
            kill -9 $held 2>/dev/null || true
            held=""
        fi
        kill -STOP $(family "$program") $held
        copy_disk
        kill_all $(family "$program") $held
        wait_for no_keeper
        start_again
        ;;
    end)
        # PostgreSQL waits for its clients by any other signal; it and Redis end by this one as well as they can.
        kill -INT "$program"
        await_client
        wait_for has_ended "$program"
        wait "$program" || status=$?
        [ "$status" = 0 ] || give_up "the program ended with $status"
        ;;
    esac
}

is_sure=yes
for life in "$@"; do
    IFS=: read -r what ms next <<<"$life"
    start "$begin"
    live "$what" "$ms"
    begin=$next
    # Nobody took records of files away that were removed since.
    case $what in program | part | end) ;; *) is_sure=no ;; esac
done

# Long enough for files to come to take part. Then nothing is left to do.
start log
live end 400
wait_for no_keeper
[ $is_sure = yes ] || recover --give-up
"$uncopy" log ls "$place/log" >"$room/logs"
! grep -q "to recover\|damaged" "$room/logs" || give_up "$(cat "$room/logs")"
if [ $is_sure = yes ]; then
    # Else a mark of a file that nothing is needed for may be left.
    marked=$(find "$place/data" -type f -exec /usr/bin/python3 -c 'import os, sys
for path in sys.argv[1:]:
    if "user.uncopy.log" in os.listxattr(path): print(path)' {} +)
    [ -z "$marked" ] || give_up "still marked: $marked"
    ! grep "uncopy: no log any more" "$room/errors" || give_up "it went on without a log"
fi

# As a program finds it that knows of no log.
case $app in
sqlite) client_says=$(/usr/bin/python3 "$scripts/apps.py" check sqlite "$where" "$journal" "$seed" "$mode") ;;
*)
    if [ "$app" = redis ]; then
        redis-check-aof "$place"/data/appendonlydir/*.manifest >"$room/aof" 2>&1 || give_up "$(cat "$room/aof")"
    fi
    "${as[@]}" "${command[@]}" >>"$room/output" 2>>"$room/errors" &
    program=$!
    wait_for listens
    client_says=$(/usr/bin/python3 "$scripts/apps.py" check "$app" "$where" "$journal" "$seed")
    if [ "$app" = postgresql ]; then
        pg_amcheck --install-missing --heapallindexed -h "$where" -U tester postgres >"$room/amcheck" 2>&1 || give_up "$(cat "$room/amcheck")"
    fi
    kill -INT "$program"
    wait "$program" || give_up "the plain program"
    ;;
esac
echo "$client_says"
echo "log_syncs $syncs"
