//! Texts below the options in each subcommand's help and man page.

pub const STATUSES: &str = "\
Exit status of run:
  CMD's own   CMD was started, accelerated or not (same process, same signals)
  127         CMD was not found
  126         CMD was found but could not be executed
  2           an option or an UNCOPY_ variable has a value that is not legal";

pub const RUN: &str = "\
Examples:
  uncopy run -- redis-server --port 7000
      Redis with the copies inside it elided.
  uncopy run --stats counters.json -- nginx -g 'daemon off;'
      The same for nginx; what was elided is in counters.json when it exits.
  uncopy run --policy always --min-size 4K -- ./server
      Elide every copy that can be, for testing a program under uncopy.
  uncopy run --explain sites.txt -- nginx -g 'daemon off;'
      Which calls saved time, which cost time, and why, by function.
  uncopy run --log /var/lib/app/log -- ./server
      What ./server writes and syncs survives by a log there.
  uncopy run --lanes -- redis-server & uncopy run --lanes -- ./client
      Between these two, large values pass by reference.
  uncopy run --net utun0 -- ./server
      What ./server accepts from the service's addresses goes through 'uncopy net', not the kernel.
  UNCOPY_HEAP=off uncopy run -- ./server
      Every option can also come from the environment; the command line wins.

CMD replaces this process: its pid, its signals and its exit status are those of CMD. With --explain
it is a child process that gets the same signals, and this one ends as it did. Where uncopy
cannot work, one line on standard error says why and CMD runs plainly. An unknown variable that
begins with UNCOPY_ is reported on one line and ignored.";

pub const OVERVIEW: &str = "\
Examples:
  uncopy doctor -- redis-server      does it work here, and for this program?
  uncopy run -- redis-server         run it with the copies inside it elided
  uncopy profile -- redis-server     where does it copy, and what would eliding give?
  uncopy ps                          what runs so, and what it saves";

pub const DOCTOR: &str = "\
Examples:
  uncopy doctor
      Check this machine.
  uncopy doctor -- nginx
      Check this machine, whether nginx can be reached, and whether that is worth trying.
  uncopy doctor --json -- nginx
      The same for a program to read.
  uncopy doctor --calibrate
      Measure once, so that programs under run need not when they start.

Each line says what was checked, its state (ok, warning or missing) and what was found; under it is
the command that mends it; the last line is the verdict. For CMD it says whether it is worth trying, by what its
file and its libraries tell, and by CMD.profile.json in this directory, if uncopy profile has made one since.
Exit status: 0 if run will be active (for CMD, if one is given), 1 if not, 2 if the command line is wrong.

What --calibrate measures is kept in $XDG_CACHE_HOME/uncopy/costs, or ~/.cache/uncopy/costs, and
ignored with another processor or kernel.";

pub const STATS: &str = "\
Examples:
  uncopy stats $(pidof nginx)
      The counters of each of them.
  uncopy stats --watch redis-server | jq .elided_bytes
      Every second, by the program's name.
  uncopy stats --all --openmetrics
      The same in the format of OpenMetrics; 'uncopy metrics' serves it.

Prints one JSON object for each process, on a line, the same that `run --stats` writes at exit. Only
the user that the process runs as, and root, can read it. Exit status: 0, or 1 if there is no such
process, it does not run under uncopy or its counters cannot be read, or 2 if the command line is
wrong.";

pub const PS: &str = "\
Examples:
  uncopy ps
      Whether what was started under uncopy elides, and what that saves.
  sudo uncopy ps --json
      Of all users, for programs to read.

STATE is active; idle: nothing large has passed yet, or less than run --begin-after; off: it was measured that eliding does not pay;
plain: it cannot elide, for a reason that stands below the table. MEMORY is what uncopy keeps for the
process. CPU is what eliding does to its processor time per byte, measured in the process itself; ?
until enough has passed. Exit status: 0, also if there is none, or 2 if the command line is wrong.";

pub const PROFILE: &str = "\
Examples:
  uncopy profile -- redis-server --port 7000
      Where does Redis copy what it receives? Give it work, then type Ctrl-C.
  uncopy profile --duration 10 -o set.json -- ./server
      Record for ten seconds, and leave the server running.
  uncopy profile --pid nginx
      The same for all processes of that name that were started with uncopy run.
  uncopy report set.json --html set.html
      What was found, as a page.

Every input, copy and output of at least --min-size bytes is recorded with its call stack, and which
bytes of which input reach which copies and outputs; nothing is elided meanwhile but for a few
inputs, to see what is touched. The report says where the copies are, what eliding them would give,
and what to type next. OUT is JSON; it is written over only if it is a profile.

On a terminal CMD has a process group of its own: Ctrl-C ends the recording, not CMD, which goes on
running. A CMD that reads from the terminal is given it, and Ctrl-C with it; uncopy then waits until
CMD has ended. SIGINT ends the recording, other signals go to CMD. A server that goes into the
background is recorded until it ends or the recording is ended.

Exit status: that of CMD if CMD has ended, 0 if the recording was ended before, 1 if nothing could be
recorded or OUT not be written, 2 if the command line is wrong, 126 and 127 as for run.";

pub const REPORT: &str = "\
Examples:
  uncopy report redis-server.profile.json
      What uncopy profile showed when it ended.
  uncopy report redis-server.profile.json --html redis.html
      A page that needs no network: the flow of bytes, a flame graph, the tables.
  uncopy report redis-server.profile.json --flamegraph redis.folded
      Bytes by call stack, for flamegraph.pl, inferno or speedscope.
  uncopy report redis-server.profile.json --json | jq .prediction
      For programs; docs/profile.schema.json says what it holds.
  uncopy report --diff before.json after.json
      What the program copies before and after a change, by site and by chain.

FILE - is standard output. --diff takes profiles of one program with the same --min-size; a site is the
same in both if the same function calls the same one. Exit status: 0, or 1 if a profile cannot be read, two
cannot be compared or a file not be written, or 2 if the command line is wrong.";

pub const RELEASE: &str = "\
Example:
  uncopy release $(pidof redis-server) && gcore $(pidof redis-server)

For debuggers, core dumps and checkpoints, which do not find the bytes of pages that are views. The
process goes on with plain copies and elides nothing from then on; its children likewise. It must be
running: release it before it is stopped. Exit status: 0, or 1 if there is no such process, it does
not run under uncopy, cannot be reached or does not answer, or 2 if the command line is wrong.";

pub const LOG: &str = "\
Examples:
  uncopy run --log /var/lib/app/log -- ./server
      What ./server writes and syncs survives by a log there.
  uncopy log recover /var/lib/app/log
      After a crash: put what the logs have into the files. 'uncopy run --log' does it too.
  uncopy log sync /var/lib/app/data.wal && cp /var/lib/app/data.wal backup/
      Wait until a file is the file system's.
  pkill server; uncopy log wait /var/lib/app/log && umount /var/lib/app
      Wait until the programs have ended, and nothing of the logs is in use.

docs/log.md says what survives what. Exit status: 0, or 1 if something could not be done or, for check
and recover, a log is damaged or has bytes that it could not put anywhere, or 2 if the command line is
wrong.";
