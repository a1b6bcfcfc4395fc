# Runs one program's file inside the root, and is the vocabulary of these files.
#
# A file sets `packages`, perhaps `seconds` (limit for hangs) and `known_MODE` (why a mode differs), and defines:
#   start   starts servers with `serve`, waits for each with `await`
#   drive   gives them load with `client`, and prints what is compared
#   after   (optional) prints more that is compared, once all servers have ended
# The servers' exit statuses are compared, too. Standard error and the servers' logs are not.
# Usage: inside.sh NAME MODE [WORDS OF UNCOPY RUN…]
# shellcheck shell=bash
set -uo pipefail

name=$1 mode=$2
shift 2
uncopy_words=("$@")
kit=/opt/current/kit
data=/room/data
logs=/room/logs
served=()
declare -A served_name

# under USER: sets `under` to what a command of that user is started with.
under() {
    under=()
    ((${#uncopy_words[@]} > 0)) || return 0
    under=(/opt/uncopy/uncopy "${uncopy_words[@]}")
    if [[ $mode == log ]]; then
        install -d -m 700 -o "$1" "/room/store/$1"
        under+=("/room/store/$1")
    fi
    under+=(--stats "/room/stats/$BASHPID-$RANDOM$RANDOM" --)
}

# serve NAME COMMAND…: starts a server; its process id is in $server.
serve() { serve_as root "$@"; }
serve_as() {
    local user=$1 title=$2
    shift 2
    under "$user"
    chmod 711 /room/store
    if [[ $user == root ]]; then
        "${under[@]}" "$@" </dev/null >>"$logs/$title" 2>&1 &
    else
        setpriv --reuid="$user" --regid="$(id -g "$user")" --clear-groups -- "${under[@]}" "$@" </dev/null >>"$logs/$title" 2>&1 &
    fi
    server=$!
    served+=("$server")
    served_name[$server]=$title
}

# client COMMAND…: runs a command in the same mode, in the foreground.
client() {
    under root
    "${under[@]}" "$@"
}
client_as() {
    local user=$1
    shift
    under "$user"
    chmod 711 /room/store
    setpriv --reuid="$user" --regid="$(id -g "$user")" --clear-groups -- "${under[@]}" "$@"
}

# await COMMAND…: repeats a command until it succeeds. Fails when the last server has ended.
await() {
    while ! "$@" >/dev/null 2>&1; do
        kill -0 "$server" 2>/dev/null || die "${served_name[$server]} has ended before it was ready"
        sleep 0.1
    done
}
# listens PORT: whether somebody listens there.
listens() { ss -Hltn "sport = :$1" | grep -q .; }

die() {
    echo "$name: $*" >&2
    tail -n 25 "$logs"/* >&2
    exit 1
}
skip() {
    echo "$*" >&2
    exit 77
}

# finish [SIGNAL [PID]]: ends a server, by default all of them, the last one first, and prints how each ended.
finish() {
    local signal=${1:-TERM} only=${2:-} at pid status left=()
    for ((at = ${#served[@]} - 1; at >= 0; at--)); do
        pid=${served[at]}
        if [[ -n $only && $pid != "$only" ]]; then
            left=("$pid" "${left[@]}")
            continue
        fi
        kill -s "$signal" "$pid" 2>/dev/null
        status=0
        wait "$pid" || status=$?
        echo "${served_name[$pid]} ended with $status"
    done
    served=("${left[@]}")
}

# bytes SEED LENGTH: prints that many bytes that follow from the seed.
bytes() { python3 "$kit/bytes.py" "$1" "$2"; }
# digest FILE…: prints the SHA-256 of each, by its base name.
digest() {
    local file
    for file; do printf '%s %s\n' "$(sha256sum <"$file" | cut -d ' ' -f 1)" "${file##*/}"; done
}
# tree DIRECTORY: prints one digest of all names and bytes below it.
tree() { (cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum | cut -d ' ' -f 1); }

start() { :; }
after() { :; }
# shellcheck source=/dev/null
source "/opt/current/$name.sh"
ip link set lo up
start || die "start failed"
drive || die "load failed with $?"
finish TERM
after || die "what is compared behind the end failed"
# Nobody may be left but this process.
for ((tries = 0; tries < 100; tries++)); do
    [[ $(pgrep -c -v -f 'inside.sh|pgrep') != 0 ]] || break
    sleep 0.1
done
exit 0
