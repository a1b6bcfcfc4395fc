# Steps of a check: each with a limit of time, its output kept, and nothing left running behind it.
# To be sourced by bash 5.1 or later, which must then call `steps_begin`, `step` …, `steps_end`.
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

# steps_begin: makes the directory for logs.
steps_begin() {
    steps_directory=$(mktemp -d "${TMPDIR:-/tmp}/uncopy-check.XXXXXX")
    trap steps_clean EXIT
    trap steps_interrupted INT TERM HUP
}

# A background command still has these traps between fork and exec: they are for the script alone.
steps_interrupted() {
    [[ $BASHPID == "$$" ]] || exit 130
    echo "uncopy: interrupted" >&2
    exit 130
}

steps_clean() {
    [[ $BASHPID == "$$" ]] || return 0
    if [[ -n $step_leader ]]; then
        kill_all "$step_timer $(members "$step_leader" "${step_mark:+STEP_MARK=$step_mark}")"
        wait 2>/dev/null || true
    fi
    rm -rf -- "$steps_directory"
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

# count_tests LOG: sets tests_passed, tests_failed and tests_skipped from what cargo test printed, and
# failed_tests to the names of those that failed, then to the programs that ended badly though no test of theirs failed.
# A test that says "skipped: NAME: WHY" could not run: the harness counts it as passed.
count_tests() {
    local said
    read -r tests_passed tests_failed tests_skipped < <(awk '
        /^test result: / {
            for (at = 1; at < NF; at++) {
                if ($(at + 1) ~ /^passed;/) passed += $at
                if ($(at + 1) ~ /^failed;/) failed += $at
                if ($(at + 1) ~ /^ignored;/) ignored += $at
            }
        }
        END { print passed + 0, failed + 0, ignored + 0 }' "$1")
    said=$(grep -oE '(^|\.\.\. )skipped: .*' "$1" | sed -E 's/^(\.\.\. )?skipped: ([^:]*).*/\2/' | sort -u | wc -l)
    mapfile -t failed_tests < <(sed -nE 's/^test (.*) \.\.\. FAILED$/\1/p' "$1"; dead_programs "$1" | grep -v '^    ')
    tests_skipped=$((tests_skipped + said))
    tests_passed=$((tests_passed > said ? tests_passed - said : 0))
}

# dead_programs LOG: prints each test program that ended badly though no test of it failed, and indented what was said last.
dead_programs() {
    awk 'function tell(   at) {
             if (died) print "program " name
             for (at = lines > 20 ? lines - 20 : 0; died && at < lines; at++) print "    " line[at]
             died = failed = lines = 0
         }
         /^ +(Running|Doc-tests) / { tell(); name = $2 == "unittests" ? $3 " " $NF : $2 }
         /^test result: FAILED/ { failed = 1 }
         { line[lines++] = substr($0, 1, 300) }
         # What it died of stands below.
         /^error: (test|doctest) failed/ { died = !failed }
         END { tell() }' "$1"
}

# slowest_tests LOG: prints the ten test programs that took longest, of what cargo test printed.
slowest_tests() {
    echo
    echo "seconds  the slowest test programs"
    awk '/^ +Running / { name = $NF; gsub(/^\(.*\/|-[0-9a-f]+\)$/, "", name) }
         /^ +Doc-tests / { name = "documentation of " $2 }
         /^test result: / && match($0, /finished in [0-9.]+/) { printf "%7.0f  %s\n", substr($0, RSTART + 12), name }' "$1" |
        sort -rn | head -n 10
}

# why_tests_failed LOG: prints what each failed test said as it panicked, without the stacks that may follow, and what
# a test program that died said last.
why_tests_failed() {
    echo
    dead_programs "$1"
    awk '/^---- .* stdout ----$/ { test = $2; left = 0 }
         /^(failures:|error: |     Running )/ { test = ""; left = 0 }
         test != "" && / panicked at / { printf "%s: %s\n", test, $0; left = 12; next }
         left > 0 { if (/^(===|note: |$)/) left = 0; else { print "    " substr($0, 1, 300); left-- } }' "$1"
}

# steps_table: prints where the time went, step by step.
steps_table() {
    ((${#steps_times[@]} > 0)) || return 0
    echo
    printf '%s\n' "${steps_times[@]}" | awk '
        { seconds[NR] = $1; processors[NR] = $2; total += $1; processor += $2; $1 = $2 = ""; name[NR] = substr($0, 3) }
        END {
            print "seconds  share  processor s  step"
            for (at = 1; at <= NR; at++)
                printf "%7d  %4.0f%%  %11d  %s\n", seconds[at], 100 * seconds[at] / (total ? total : 1), processors[at], name[at]
            printf "%7d   100%%  %11d  all\n", total, processor
        }'
}

# steps_end PASSED FAILED SKIPPED [LOG]: adds the tests' counts, prints where the time went, what went wrong (as LOG of
# cargo test says) and the sums; returns 1 unless all is well. What went wrong comes last: often only the end is kept.
steps_end() {
    local passed=$((steps_passed + $1)) bad=$((${#steps_failed[@]} + $2)) skipped=$((${#steps_skipped[@]} + $3)) entry
    steps_table
    [[ -z ${4:-} ]] || why_tests_failed "$4"
    echo
    for entry in "${steps_failed[@]}" "${failed_tests[@]/#/test }"; do
        echo "failed: $entry"
    done
    echo "$passed passed, $bad failed, $skipped skipped"
    ((bad == 0))
}
