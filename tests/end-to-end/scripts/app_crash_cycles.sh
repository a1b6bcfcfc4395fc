#!/bin/bash
# Crash cycles of a server, or of SQLite, with a log, one after the other, on a file system of its own, in a mount namespace of its own:
# app_crash_cycles.sh UNCOPY SCRATCH_DIR APP POLICY SEED CYCLE...
#   SCRATCH_DIR   a directory in memory; APP   redis | sqlite-wal | sqlite-delete | sqlite-truncate | sqlite-persist | postgresql
#   POLICY   always | auto, with a log beside the page cache | only, with one in memory that has the only copy
#   CYCLE   WHAT:MS:HOW, what happens after MS milliseconds: program (is killed) | part (of it is killed) | keeper (is killed) |
#          both (are killed) | power (is lost) | keeper-power | end (the program is asked to);
#          and how the next one begins: log (that of the program recovers) | plain (after log recover)
set -eu
uncopy=$1 scratch_dir=$2 name=$3 policy=$4 seed=$5
shift 5
scripts=$(dirname "${BASH_SOURCE[0]}")
# shellcheck source=disk.sh
source "$scripts/disk.sh"
app=${name%-*} mode=${name#*-} journal=$scratch_dir/journal begin=log syncs=0
touch "$journal"
new_disk "$([ "$app" = postgresql ] && echo 640M || echo 320M)" "mkfs.ext4 -q -F"
log=$mount_point/log options=(--log-size 16777216 --policy "$policy")
if [ "$policy" = only ]; then
    log=$scratch_dir/log
    any=$(printf ":$mount_point/data%s" "/*" "/*/*" "/*/*/*" "/*/*/*/*")
    options=(--log-mode only --log-emulate-dax --log-size 67108864 --policy always --log-files "${any#:}")
fi
mkdir -m 700 "$log" "$mount_point/data"
run_as=(setpriv --pdeathsig KILL)
export PATH=$PATH:/usr/lib/postgresql/15/bin

fail() {
    echo "$*" >&2
    # What is known of a hang.
    for process in $(process_tree "${program:-}" "${client:-}") $(keepers); do
        echo "--- $process $(tr '\0' ' ' <"/proc/$process/cmdline") $(cat "/proc/$process/wchan" "/proc/$process/syscall" "/proc/$process/stack" 2>&1)"
    done >&2
    tail -n 30 "$scratch_dir"/{errors,said,said-errors,recovered} >&2
    "$uncopy" log ls "$log" >&2
    exit 1
}

# Processes and all that descend from them.
process_tree() {
    local process
    for process in "$@"; do
        [ -d "/proc/$process" ] || continue
        echo "$process"
        # shellcheck disable=SC2046 # numbers
        process_tree $(cat "/proc/$process"/task/*/children 2>/dev/null)
    done
}

case $app in
redis)
    address=$scratch_dir/socket
    command=(redis-server --port 0 --unixsocket "$address" --dir "$mount_point/data" --save "" --appendonly yes --appendfsync always
        --auto-aof-rewrite-min-size 1mb)
    ;;
sqlite)
    address=$mount_point/data/base
    command=(/usr/bin/python3 "$scripts/apps.py" work sqlite "$address" "$journal" "$seed" "$mode")
    ;;
postgresql)
    address=$scratch_dir/sockets
    mkdir -m 777 "$address"
    chmod 711 "$scratch_dir"
    chown 65534:65534 "$log" "$mount_point/data"
    run_as+=(--reuid=65534 --regid=65534 --clear-groups --inh-caps=-all,+sys_ptrace --ambient-caps=+sys_ptrace --bounding-set=-all,+sys_ptrace)
    "${run_as[@]}" initdb --no-sync --encoding=UTF8 --locale=C --auth=trust --username=tester --wal-segsize=1 -D "$mount_point/data/base" >"$scratch_dir/initdb" 2>&1
    sync -f "$mount_point"
    command=(postgres -D "$mount_point/data/base" -k "$address" -h "" -c shared_buffers=16MB -c min_wal_size=2MB -c max_wal_size=8MB
        -c autovacuum=off -c dynamic_shared_memory_type=mmap -c checkpoint_timeout=30s)
    ;;
esac

# Starts the program, and who makes transactions, and waits until that has compared what is there.
start() {
    local run=("$uncopy" run --log "$log" "${options[@]}" --)
    if [ "$1" = plain ]; then
        run=()
        recover
    fi
    : >"$scratch_dir/said"
    rm -f "$scratch_dir/socket"
    # Redis forks for a rewrite, and what was open then takes part no more: not in every cycle.
    rewrites=$((100 - ${rewrites:-100}))
    if [ "$app" = sqlite ]; then
        "${run_as[@]}" "${run[@]}" "${command[@]}" >"$scratch_dir/said" 2>>"$scratch_dir/errors" &
        program=$!
        client=$program
    else
        [ "$app" != redis ] || command+=(--auto-aof-rewrite-percentage "$rewrites")
        "${run_as[@]}" "${run[@]}" "${command[@]}" >>"$scratch_dir/output" 2>>"$scratch_dir/errors" &
        program=$!
        wait_for listens
        start_client
    fi
    wait_for has_compared
}
start_client() {
    setpriv --pdeathsig KILL /usr/bin/python3 "$scripts/apps.py" work "$app" "$address" "$journal" "$seed" >"$scratch_dir/said" 2>"$scratch_dir/said-errors" &
    client=$!
}
listens() {
    [ -d "/proc/$program" ] || fail "the program has ended"
    if [ "$app" = redis ]; then
        [ "$(redis-cli -s "$address" ping 2>&1)" = PONG ]
    else
        pg_isready -q -h "$address"
    fi
}
has_compared() {
    if grep -q "^checked " "$scratch_dir/said"; then return 0; fi
    kill -0 "$client" 2>/dev/null || fail "the client has ended"
    return 1
}
recover() {
    "${run_as[@]}" "$uncopy" log recover "$@" "$log" >>"$scratch_dir/recovered" 2>&1 || [ "${expects_clean:-}" != yes ] || fail "log recover"
}
acknowledged() { grep -c done "$journal" || true; }
has_progressed() { [ "$(acknowledged)" -gt "$((before + 2))" ]; }

# Adds up what went by the log, as far as processes are there to be asked.
count_syncs() {
    local process found
    for process in $(process_tree "$program"); do
        found=$("$uncopy" stats "$process" 2>/dev/null | sed -n 's/.*"log_syncs": *\([0-9]*\).*/\1/p')
        syncs=$((syncs + ${found:-0}))
    done
}

# The transactions' maker ends with what it talks to, and has found nothing wrong.
wait_for_client() {
    local status=0
    wait_for has_ended "$client"
    if [ "$client" != "$program" ]; then
        wait "$client" || status=$?
        [ "$status" = 0 ] || fail "the client ended with $status"
    fi
}
has_ended() { ! kill -0 "$1" 2>/dev/null || grep -q "^State:.Z" "/proc/$1/status"; }

# Kills the program with all that descend from it, and these processes, and waits until none is left: PostgreSQL does not begin
# again while one has its memory.
kill_all() {
    local process all
    # It makes no more of them.
    kill -STOP "$program" 2>/dev/null || true
    all="$* $(process_tree "$program")"
    # shellcheck disable=SC2086 # numbers
    kill -9 $all 2>/dev/null || true
    wait "$program" 2>/dev/null || true
    for process in $all; do
        wait_for has_ended "$process"
    done
    wait_for_client
}

# shellcheck disable=SC2046,SC2086 # lists of numbers
run_cycle() {
    local what=$1 ms=$2 keeper_pids part status=0
    before=$(acknowledged)
    wait_for has_progressed
    sleep "$(printf '%d.%03d' $((ms / 1000)) $((ms % 1000)))"
    keeper_pids=$(keepers)
    count_syncs
    case $what in
    program) kill_all ;;
    both) kill_all $keeper_pids ;;
    keeper)
        kill -9 $keeper_pids 2>/dev/null || true
        before=$(acknowledged)
        wait_for has_progressed
        kill_all
        ;;
    part)
        # The server ends the others, and begins again by itself.
        part=$(process_tree "$program" | tail -n +2 | shuf -n 1)
        kill -9 "$part"
        wait_for_client
        wait_for listens
        start_client
        wait_for has_compared
        before=$(acknowledged)
        wait_for has_progressed
        kill_all
        ;;
    power | keeper-power)
        if [ "$what" = keeper-power ]; then
            kill -9 $keeper_pids 2>/dev/null || true
            keeper_pids=""
        fi
        kill -STOP $(process_tree "$program") $keeper_pids
        copy_disk
        kill_all $keeper_pids
        wait_for no_keeper
        reboot_disk
        ;;
    end)
        # PostgreSQL waits for its clients by any other signal; it and Redis end by this one as well as they can.
        kill -INT "$program"
        wait_for_client
        wait_for has_ended "$program"
        wait "$program" || status=$?
        [ "$status" = 0 ] || fail "the program ended with $status"
        ;;
    esac
}

expects_clean=yes
for cycle in "$@"; do
    IFS=: read -r what ms next <<<"$cycle"
    start "$begin"
    run_cycle "$what" "$ms"
    begin=$next
    # Nobody took records of files away that were removed since.
    case $what in program | part | end) ;; *) expects_clean=no ;; esac
done

# Long enough for files to come to take part. Then nothing is left to do.
start log
run_cycle end 400
wait_for no_keeper
[ $expects_clean = yes ] || recover --give-up
"$uncopy" log ls "$log" >"$scratch_dir/logs"
! grep -q "to recover\|damaged" "$scratch_dir/logs" || fail "$(cat "$scratch_dir/logs")"
if [ $expects_clean = yes ]; then
    # Else a mark of a file that nothing is needed for may be left.
    marked=$(find "$mount_point/data" -type f -exec /usr/bin/python3 -c 'import os, sys
for path in sys.argv[1:]:
    if "user.uncopy.log" in os.listxattr(path): print(path)' {} +)
    [ -z "$marked" ] || fail "still marked: $marked"
    ! grep "uncopy: no log any more" "$scratch_dir/errors" || fail "it went on without a log"
fi

# As a program finds it that knows of no log.
case $app in
sqlite) client_output=$(/usr/bin/python3 "$scripts/apps.py" check sqlite "$address" "$journal" "$seed" "$mode") ;;
*)
    if [ "$app" = redis ]; then
        redis-check-aof "$mount_point"/data/appendonlydir/*.manifest >"$scratch_dir/aof" 2>&1 || fail "$(cat "$scratch_dir/aof")"
    fi
    "${run_as[@]}" "${command[@]}" >>"$scratch_dir/output" 2>>"$scratch_dir/errors" &
    program=$!
    wait_for listens
    client_output=$(/usr/bin/python3 "$scripts/apps.py" check "$app" "$address" "$journal" "$seed")
    if [ "$app" = postgresql ]; then
        pg_amcheck --install-missing --heapallindexed -h "$address" -U tester postgres >"$scratch_dir/amcheck" 2>&1 || fail "$(cat "$scratch_dir/amcheck")"
    fi
    kill -INT "$program"
    wait "$program" || fail "the plain program"
    ;;
esac
echo "$client_output"
echo "log_syncs $syncs"
