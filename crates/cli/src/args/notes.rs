//! Texts below the options in each subcommand's help and man page. A paragraph is one line here, which clap
//! and troff wrap.

pub const STATUSES: &str = "\
Exit status of run:
  CMD's own   CMD ran, with or without uncopy (same process, same signals)
  127         CMD was not found
  126         CMD was found but could not be executed
  2           an option or an UNCOPY_ variable has an illegal value";

pub const RUN: &str = "\
Examples:
  uncopy run -- redis-server --port 7000
      Run Redis with its I/O copies elided.
  uncopy run --stats counters.json -- nginx -g 'daemon off;'
      Run nginx, and write its counters to counters.json when it exits.
  uncopy run --policy always --min-size 4K -- ./server
      Elide every copy that may be elided, to test a program under uncopy.
  uncopy run --explain sites.txt -- nginx -g 'daemon off;'
      Report which call sites saved or cost time, and why.
  uncopy run --log /var/lib/app/log -- ./server
      Let fsync append to a log in that directory instead of waiting for the file system.
  uncopy run --lanes -- redis-server & uncopy run --lanes -- ./client
      Pass large parts of the streams between these two by reference.
  uncopy run --net utun0 -- ./server
      Let the TCP connections of the service utun0 go through 'uncopy net' instead of the kernel.
  UNCOPY_HEAP=off uncopy run -- ./server
      Set an option by its variable; the command line wins.

CMD replaces this process: same process id, same signals, same exit status. With --explain, CMD is a child \
process that gets the same signals, and 'uncopy run' ends as CMD did. Where uncopy cannot work, one line on \
standard error says why, and CMD runs without it. An unknown variable that begins with UNCOPY_ is reported on one \
line and ignored.";

pub const OVERVIEW: &str = "\
Examples:
  uncopy doctor -- redis-server      does it work here, and for this program?
  uncopy run -- redis-server         run it with its I/O copies elided
  uncopy profile -- redis-server     where does it copy, and what would eliding save?
  uncopy ps                          what runs under uncopy, and what that saves";

pub const DOCTOR: &str = "\
Examples:
  uncopy doctor
      Check this machine.
  uncopy doctor -- nginx
      Check this machine, whether uncopy reaches nginx, and whether it is worth trying.
  uncopy doctor --json -- nginx
      Print the same as JSON.
  uncopy doctor --calibrate
      Measure once, so that programs need not measure when they start.

Each line has the name of a check, its state (ok, warning or missing) and what was found. The line below a \
problem is the command that fixes it. The last line is the verdict. For CMD it says whether uncopy is worth trying, \
judged by CMD's file and libraries, and by CMD.profile.json in the current directory if that is newer than CMD. \
Exit status: 0 if 'uncopy run' will be active (for CMD, if given); 1 if not; 2 for a wrong command line.

--calibrate stores the costs in $XDG_CACHE_HOME/uncopy/costs or ~/.cache/uncopy/costs. They are ignored on \
another processor or kernel.";

pub const STATS: &str = "\
Examples:
  uncopy stats $(pidof nginx)
      Print the counters of every nginx process.
  uncopy stats --watch redis-server | jq .elided_bytes
      Select processes by name, and repeat every second.
  uncopy stats --all --openmetrics
      Print all counters in the OpenMetrics format, which 'uncopy metrics' serves over HTTP.

Prints one JSON object on a line for each process, the same that 'uncopy run --stats' writes at exit. Only the \
process's user and root can read it. Exit status: 0; 1 if a process does not exist, does not run under uncopy, or \
its counters cannot be read; 2 for a wrong command line.";

pub const PS: &str = "\
Examples:
  uncopy ps
      List the processes of this user.
  sudo uncopy ps --json
      List the processes of all users as JSON.

STATE is active; idle: no large data has passed, or less than 'uncopy run --begin-after'; off: trials measured \
that eliding does not pay; plain: it cannot elide, for the reason below the table. MEMORY is what uncopy keeps for \
the process. CPU is the change of processor time per byte by eliding, measured in the process; ? means not measured \
yet. Exit status: 0, also if there is no process; 2 for a wrong command line.";

pub const PROFILE: &str = "\
Examples:
  uncopy profile -- redis-server --port 7000
      Record Redis: put load on it, then type Ctrl-C.
  uncopy profile --duration 10 -o set.json -- ./server
      Record ten seconds; the server goes on running.
  uncopy profile --pid nginx
      Record all processes of this name that 'uncopy run' started; without any, sample all of this name.
  uncopy profile -a
      Sample the whole machine, and list what its processes spend on copies.
  uncopy profile --duration 10 --pprof set.pb.gz -- ./server && go tool pprof -http : set.pb.gz
      Also write a file for pprof, Pyroscope or speedscope.
  uncopy report set.json --html set.html
      Write the report as an HTML page.

Records every input, copy and output of at least --min-size bytes with its call stack, and which input's bytes \
reach which copies and outputs. Meanwhile only a few inputs are elided, to see what the program touches. The report \
shows where the copies are, what eliding them would save, and what to type next. OUT is JSON; an existing file is \
replaced only if it is a profile. FILE of --pprof is replaced whatever it is.

Ctrl-C, SIGINT and --duration end the recording, not CMD; other signals go to CMD. On a terminal CMD has a process \
group of its own. If CMD reads from the terminal, it gets the terminal and Ctrl-C, and uncopy waits until CMD has \
ended. A server that goes into the background is recorded until it or the recording ends.

Processes that are not under uncopy are sampled, as are all with --json, --frequency or --folded: they are neither \
stopped nor changed. The report shows the shares of processor time that copy memory, in the program and in the \
kernel, a verdict, and what to type next. Needs what perf(1) needs: see 'uncopy doctor'.

Exit status: CMD's own if CMD has ended; 0 if the recording ended first; 1 if nothing was recorded or OUT was not \
written; 2 for a wrong command line; 126 and 127 as for 'uncopy run'.";

pub const REPORT: &str = "\
Examples:
  uncopy report redis-server.profile.json
      Print the report that 'uncopy profile' printed.
  uncopy report redis-server.profile.json --html redis.html
      Write a page that needs no network: byte flow, flame graph and tables.
  uncopy report redis-server.profile.json --flamegraph redis.folded
      Write bytes per call stack, for flamegraph.pl, inferno or speedscope.
  uncopy report redis-server.profile.json --pprof redis.pb.gz && go tool pprof -http : redis.pb.gz
      Show calls, bytes, times and predicted savings per call stack in a browser. Also for Pyroscope.
  uncopy report redis-server.profile.json --json | jq .prediction
      Print JSON; docs/profile.schema.json describes it.
  uncopy report --diff before.json after.json
      Compare what the program copies before and after a change, by site and by chain.

FILE - is standard output. --diff needs two profiles of one program with the same --min-size; sites match if the \
same function calls the same function. Exit status: 0; 1 if a profile cannot be read, the two cannot be compared, or \
a file cannot be written; 2 for a wrong command line.";

pub const RELEASE: &str = "\
Example:
  uncopy release $(pidof redis-server) && gcore $(pidof redis-server)

Debuggers, core dumps and checkpoints do not see elided bytes. This command puts all of them into the process's \
memory. From then on the process and its children elide nothing. The process must be running: release it before it \
is stopped. Exit status: 0; 1 if there is no such process, it does not run under uncopy, cannot be reached or does \
not answer; 2 for a wrong command line.";

pub const LOG: &str = "\
Examples:
  uncopy run --log /var/lib/app/log -- ./server
      Let fsync append to a log there instead of waiting for the file system.
  uncopy log recover /var/lib/app/log
      After a crash: write the records to their files. 'uncopy run --log' does so first, too.
  uncopy log sync /var/lib/app/data.wal && cp /var/lib/app/data.wal backup/
      Wait until the file is synced, then copy it.
  pkill server; uncopy log wait /var/lib/app/log && umount /var/lib/app
      Wait until nothing uses the logs, then unmount.

docs/log.md says what survives which failure. Exit status: 0; 1 if something could not be done or, for check and \
recover, a log is damaged or has records that could not be written to a file; 2 for a wrong command line.";
