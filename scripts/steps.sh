# Steps of a check: each with a limit of time, its output kept, and nothing left running behind it.
# To be sourced by bash 5.1 or later, which must then call `steps_begin`, `step` …, `steps_end`.
#
# Steps may run beside others: `beside FUNCTION` … `join`.
#
# A step runs under setsid with nothing to read. When it takes too long, every process that descends
# from it is shown with its threads, then killed. What is still there after its end (a server that a
# test forgot) fails it; with $step_mark set, also what called setsid itself.
# shellcheck shell=bash

steps_passed=0
steps_failed=()
steps_skipped=()
failed_tests=()
# Each step: seconds, processor seconds, name.
steps_times=()
step_leader=
step_timer=
# The shell whose steps these are: the script, or the one beside it.
steps_shell=
# The shell beside the script.
steps_beside=

# steps_begin: makes the directory for logs.
steps_begin() {
    steps_directory=$(mktemp -d "${TMPDIR:-/tmp}/uncopy-check.XXXXXX")
    steps_shell=$BASHPID
    steps_begun=$SECONDS
    trap steps_clean EXIT
    trap steps_interrupted INT TERM HUP
}

# A background command still has these traps between fork and exec: they are for the script alone.
steps_interrupted() {
    [[ $BASHPID == "$steps_shell" ]] || exit 130
    [[ $BASHPID != "$$" ]] || echo "uncopy: interrupted" >&2
    exit 130
}

steps_clean() {
    [[ $BASHPID == "$steps_shell" ]] || return 0
    [[ -z $steps_beside ]] || kill -TERM "$steps_beside" 2>/dev/null || true
    if [[ -n $step_leader ]]; then
        kill_all "$step_timer $(members "$step_leader" "${step_mark:+STEP_MARK=$step_mark}")"
    fi
    wait 2>/dev/null || true
    [[ $BASHPID != "$$" ]] || rm -rf -- "$steps_directory"
}

# beside FUNCTION: runs the steps of FUNCTION beside those that follow, until `join`. What they print is kept until then.
beside() {
    mkfifo -- "$steps_directory/joined"
    (
        steps_shell=$BASHPID
        trap steps_clean EXIT
        trap steps_interrupted INT TERM HUP
        script_directory=$steps_directory
        steps_directory=$steps_directory/beside
        mkdir -- "$steps_directory"
        steps_passed=0 steps_failed=() steps_skipped=() steps_times=()
        "$1" >"$script_directory/beside.log" 2>&1
        declare -p steps_passed steps_failed steps_skipped steps_times >"$script_directory/beside.sh"
        # Its processor time becomes the script's when it ends: not while one of the script's steps runs.
        read -r _ <"$script_directory/joined"
    ) &
    steps_beside=$!
}

# join: waits for the steps that run beside the script, prints what they printed, and adds their results.
join() {
    local passed=$steps_passed failed=("${steps_failed[@]}") skipped=("${steps_skipped[@]}") times=("${steps_times[@]}")
    echo >"$steps_directory/joined"
    wait "$steps_beside" || true
    steps_beside=
    cat -- "$steps_directory/beside.log"
    # The shell that runs them may itself have been killed.
    if [[ ! -f $steps_directory/beside.sh ]]; then
        failed "the steps beside these" "125"
        return 1
    fi
    # shellcheck source=/dev/null
    source <(sed 's/^declare -[-a]* //' "$steps_directory/beside.sh")
    steps_passed=$((passed + steps_passed))
    steps_failed=("${failed[@]}" "${steps_failed[@]}")
    steps_skipped=("${skipped[@]}" "${steps_skipped[@]}")
    steps_times=("${times[@]}" "${steps_times[@]}")
}

# members LEADER MARK: the processes under LEADER's setsid, and those whose environment holds MARK.
members() {
    local directory pid line fields
    for directory in /proc/[0-9]*; do
        pid=${directory#/proc/}
        [[ $pid != "$$" && $pid != "$BASHPID" ]] || continue
        # pid (command) state parent group leader …; the command may hold anything.
        { IFS= read -r -d '' line <"$directory/stat"; } 2>/dev/null || [[ -n ${line:-} ]] || continue
        read -r -a fields <<<"${line##*) }"
        line=
        [[ ${fields[0]} != [ZX] ]] || continue
        if [[ ${fields[3]} == "$1" ]] || { [[ -n $2 ]] && grep -qzFx -- "$2" "$directory/environ" 2>/dev/null; }; then
            echo "$pid"
        fi
    done
}

# processor_ms: sets it to the processor time of all children that have ended, milliseconds. What a step leaves
# to others (a daemon) is not in it.
processor_ms() {
    local user system
    times >"$steps_directory/times"
    read -r user system < <(tail -n 1 -- "$steps_directory/times")
    processor_ms=$(awk -v times="$user $system" 'BEGIN {
        split(times, part, "[ ms]+")
        printf "%d", ((part[1] + part[3]) * 60 + part[2] + part[4]) * 1000
    }')
}

# kill_all PIDS: ends processes, by their ids.
kill_all() {
    local pid
    for pid in $1; do
        kill -KILL "$pid" 2>/dev/null || true
    done
}

# command_of PID: its command line, or its name.
command_of() {
    local words
    words=$(tr '\0' ' ' <"/proc/$1/cmdline" 2>/dev/null) || true
    [[ -n $words ]] || words=$(cat "/proc/$1/comm" 2>/dev/null) || true
    printf '%.200s' "$words"
}

# step NAME LIMIT_S COMMAND…: runs one step; returns its exit status, 124 if it took too long, 125
# if it was well but left something running. The output is in $step_log.
step() {
    local name=$1 limit_s=$2 begin=$SECONDS status=0 leader timer output first left pid mark waited processor_ms before_ms
    shift 2
    processor_ms
    before_ms=$processor_ms
    step_log=$steps_directory/${name// /-}.log
    printf '\n== %s\n' "$name"
    rm -f -- "$steps_directory/pipe"
    mkfifo -- "$steps_directory/pipe"
    tee -- "$step_log" <"$steps_directory/pipe" &
    output=$!
    mark=${step_mark:+STEP_MARK=$step_mark}
    setsid -- env ${mark:+"$mark"} "$@" </dev/null >"$steps_directory/pipe" 2>&1 &
    leader=$!
    step_leader=$leader
    sleep "$limit_s" &
    timer=$!
    step_timer=$timer
    wait -n -p first "$leader" "$timer" || status=$?
    if [[ $first == "$timer" ]]; then
        status=124
        {
            echo "uncopy: $name still runs after $limit_s s:"
            # shellcheck disable=SC2046
            scripts/threads $(members "$leader" "$mark")
        } >&2
        kill_all "$(members "$leader" "$mark")"
        wait "$leader" 2>/dev/null || true
    else
        kill "$timer" 2>/dev/null || true
    fi
    wait "$timer" 2>/dev/null || true
    # What was just killed takes a moment to go.
    for ((waited = 0; waited < 20; waited++)); do
        left=$(members "$leader" "$mark")
        [[ -n $left ]] || break
        sleep 0.1
    done
    if [[ -n $left ]]; then
        for pid in $left; do
            echo "uncopy: $name left process $pid running: $(command_of "$pid")" >&2
        done
        kill_all "$left"
        ((status != 0)) || status=125
    fi
    # A process that escaped both searches may hold the pipe.
    for ((waited = 0; waited < 20; waited++)); do
        kill -0 "$output" 2>/dev/null || break
        sleep 0.1
    done
    kill "$output" 2>/dev/null || true
    wait "$output" 2>/dev/null || true
    step_leader=
    step_seconds=$((SECONDS - begin))
    processor_ms
    steps_times+=("$step_seconds $(((processor_ms - before_ms + 500) / 1000)) $name")
    return "$status"
}

# check NAME LIMIT_S COMMAND…: a step that counts as one check. Returns 1 if it failed.
check() {
    local status=0
    step "$@" || status=$?
    if ((status == 0)); then
        echo "passed: $1 ($step_seconds s)"
        steps_passed=$((steps_passed + 1))
        return 0
    fi
    failed "$1" "$status"
    return 1
}

# failed NAME STATUS: records a failed check.
failed() {
    local why="exit status $2"
    case $2 in
        124) why="took too long" ;;
        125) why="left processes running" ;;
    esac
    echo "failed: $1 ($why)"
    steps_failed+=("$1 ($why)")
}

# skip NAME WHY: records a check that cannot be made here.
skip() {
    printf '\n== %s\nskipped: %s: %s\n' "$1" "$1" "$2"
    steps_skipped+=("$1: $2")
}

# count_tests RESULTS: adds what cargo-nextest wrote of the tests to the sums, and sets failed_tests to those that failed.
count_tests() {
    local line
    while IFS= read -r line; do
        case $line in
            "passed: "*) steps_passed=$((steps_passed + ${line#passed: })) ;;
            "failed: "*) failed_tests+=("${line#failed: }") ;;
            "skipped: "*) steps_skipped+=("${line#skipped: }") ;;
        esac
    done < <(scripts/test-results counts "$1")
}

# steps_table: prints where the time went, step by step. Of steps beside others each takes longer than it would alone.
steps_table() {
    ((${#steps_times[@]} > 0)) || return 0
    echo
    printf '%s\n' "${steps_times[@]}" | awk -v elapsed="$((SECONDS - steps_begun))" '
        { processor += $2; line = sprintf("%7d  %11d", $1, $2); $1 = $2 = ""; lines[NR] = line "  " substr($0, 3) }
        END {
            print "seconds  processor s  step"
            for (at = 1; at <= NR; at++) print lines[at]
            printf "%7d  %11d  all\n", elapsed, processor
        }'
}

# steps_end [RESULTS]: prints where the time went, which tests took longest and what failed ones said (as cargo-nextest wrote), what
# went wrong and the sums; returns 1 unless all is well. What went wrong comes last: often only the end is kept.
steps_end() {
    local bad entry
    steps_table
    if [[ -n ${1:-} ]]; then
        echo
        scripts/test-results slowest "$1"
        scripts/test-results failures "$1"
    fi
    echo
    for entry in "${steps_skipped[@]}"; do
        echo "skipped: $entry"
    done
    for entry in "${steps_failed[@]}" "${failed_tests[@]/#/test }"; do
        echo "failed: $entry"
    done
    bad=$((${#steps_failed[@]} + ${#failed_tests[@]}))
    echo "$steps_passed passed, $bad failed, ${#steps_skipped[@]} skipped"
    ((bad == 0))
}
