//! Static probes of the built library: their notes, and bpftrace's counts beside uncopy's own.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use object::read::elf::{ElfFile64, SectionHeader as _};
use object::{Endianness, Object as _, ObjectSection as _};
use uncopy_core::stats::Counter;
use uncopy_testbed::servers::{self, Service as _};
use uncopy_tests::artifacts::{injecting_library, library, skipped};
use uncopy_tests::packaged_server::program;
use uncopy_tests::random::{Random, seed};
use uncopy_tests::redis::{Model, Redis};
use uncopy_tests::running::Running;
use uncopy_tests::scratch::wait_until;
use uncopy_tests::{Mode, Program, Scratch};

const BPFTRACE: &str = "/usr/bin/bpftrace";
/// Printed by bpftrace once all probes are attached, if this variable is set.
const ATTACHED: &str = "__BPFTRACE_NOTIFY_PROBES_ATTACHED";
/// Type of the notes that describe probes, and their owner.
const NT_STAPSDT: u32 = 3;
const OWNER: &[u8] = b"stapsdt";
/// Bytes of three addresses, before the names in a note: of the probe, of the base, of the semaphore.
const ADDRESSES_BYTES: usize = 24;
const NOP: u8 = 0x90;

/// Arguments of each probe, as docs/tools.md lists them: rows like `` | `fault` | `arg0` address, … | ``.
fn documented_arguments() -> BTreeMap<String, usize> {
    let rows = documentation();
    let rows = rows.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | `arg0` "));
    rows.map(|(name, arguments)| (name.to_owned(), 1 + arguments.matches("`arg").count())).collect()
}

fn documentation() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tools.md");
    std::fs::read_to_string(path).expect("the document")
}

#[test]
fn library_has_a_note_for_each_probe() {
    let bytes = std::fs::read(library()).expect("the library");
    let file = ElfFile64::<Endianness>::parse(&*bytes).expect("ELF");
    let section = file.section_by_name(".note.stapsdt").expect("notes of probes");
    let mut notes =
        section.elf_section_header().notes(file.endian(), &*bytes).expect("notes").expect("notes");
    let mut found = BTreeMap::new();
    while let Some(note) = notes.next().expect("a note") {
        assert_eq!((note.name(), note.n_type(file.endian())), (OWNER, NT_STAPSDT));
        let (addresses, names) = note.desc().split_at(ADDRESSES_BYTES);
        let address = |at: usize| u64::from_le_bytes(addresses[at..at + 8].try_into().expect("eight bytes"));
        let names: Vec<&str> =
            names.split(|byte| *byte == 0).map(|name| std::str::from_utf8(name).expect("UTF-8")).collect();
        let (provider, name, arguments) = (names[0], names[1], names[2]);
        assert_eq!((provider, address(16)), ("uncopy", 0), "{name}: no semaphore is needed");
        let mut sections = file.sections();
        let code = sections.find_map(|section| section.data_range(address(0), 1).ok().flatten());
        assert_eq!(code, Some(&[NOP][..]), "{name}");
        let arguments: Vec<&str> = arguments.split(' ').collect();
        // In registers: a tracer need not read the program's memory, and the path does not write it.
        assert!(arguments.iter().all(|argument| argument.starts_with("-8@%r")), "{name}: {arguments:?}");
        let count = *found.entry(name.to_owned()).or_insert(arguments.len());
        assert_eq!(count, arguments.len(), "{name}");
    }
    assert_eq!(found, documented_arguments());
    assert_eq!(found.len(), 4);
}

fn skip(test: &str, why: &str) {
    // Written directly, since the test harness would capture the line.
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
}

/// bpftrace, attached to the probes of a copy of the library, which no other test loads.
struct Tracer {
    running: Running,
    library: PathBuf,
}

impl Tracer {
    /// Starts bpftrace with a script in which `LIB` stands for the library, and waits until it is attached. If it
    /// cannot attach here, prints that `test` is skipped.
    fn start(test: &str, scratch: &Scratch, original: &Path, script: &str) -> Option<Self> {
        if !Path::new(BPFTRACE).exists() {
            skip(test, "there is no bpftrace; install it with: apt-get install bpftrace");
            return None;
        }
        let library = scratch.join("libuncopy.so");
        let _ = std::fs::copy(original, &library).expect("a copy");
        let script = script.replace("LIB", library.to_str().expect("UTF-8"));
        let running =
            Program::new(BPFTRACE).env(ATTACHED, "1").args(["-e", &script]).start(scratch, "bpftrace");
        // Some versions print it to standard output, others to standard error.
        let is_attached = || [running.output(), running.errors()].iter().any(|text| text.contains(ATTACHED));
        wait_until("bpftrace", || (running.has_ended() || is_attached()).then_some(()));
        if running.has_ended() {
            let errors = running.errors();
            assert!(!errors.contains("syntax error"), "{errors}");
            skip(test, &format!("bpftrace cannot attach: {}", errors.trim().replace('\n', "; ")));
            return None;
        }
        Some(Self { running, library })
    }

    /// Ends bpftrace; returns its output.
    fn finish(self) -> String {
        let done = self.running.stop(libc::SIGINT);
        String::from_utf8_lossy(&done.output).into_owned()
    }
}

/// Returns the value of a map that bpftrace printed: `@NAME: VALUE`.
fn value(output: &str, name: &str) -> u64 {
    let value = output.lines().find_map(|line| line.strip_prefix(&format!("@{name}: ")));
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {output}"))
}

/// bpftrace counts the copies, bytes and faults of a Redis server that the server's own counters have.
#[test]
fn probes_fire_as_often_as_uncopy_counts() {
    if skipped() {
        return;
    }
    const TEST: &str = "probes_fire_as_often_as_uncopy_counts";
    const SCRIPT: &str = "usdt:LIB:uncopy:elided_copy { @copies = count(); @bytes = sum(arg3); \
         if (arg3 > arg2 || arg0 == arg1) { @wrong = count(); } } \
         usdt:LIB:uncopy:fault { @faults = count(); if (arg0 % 4096 != 0 || arg1 == 0) { @wrong = count(); } } \
         usdt:LIB:uncopy:trial { @trials = count(); if (arg0 > 31 || arg1 > 3 || arg2 > 1) { @wrong = count(); } }";
    let scratch = Scratch::new("probes");
    let Some(tracer) = Tracer::start(TEST, &scratch, &library(), SCRIPT) else { return };
    let server = program(servers::Redis::PROGRAM, Mode::Sliced).library(&tracer.library);
    // A child that rewrites the file would have counters of its own.
    let options = ["--appendonly", "yes", "--auto-aof-rewrite-percentage", "0"];
    let redis = Redis::start_by(server, &scratch, "redis", &scratch.directory("data"), &options);
    let mut client = redis.client();
    let mut random = Random::new(seed(51));
    let mut model = Model::default();
    model.walk(&mut client, &mut random, 300, 4 << 20);
    // While the server is idle: at its end it touches memory after its counters are written.
    let output = tracer.finish();
    let counters = redis.0.running.live_counters().expect("counters");
    let _ = redis.shut_down();
    let traced = ["copies", "bytes", "faults"].map(|name| value(&output, name));
    let counted = [Counter::ElidedCopies, Counter::ElidedBytes, Counter::Faults];
    assert_eq!(traced, counted.map(|counter| counters.get(counter)), "{output}");
    assert!(traced.iter().all(|value| *value > 0) && value(&output, "trials") > 0, "{output}");
    // Some versions print maps that hold nothing.
    assert!(!output.contains("@wrong") || value(&output, "wrong") == 0, "{output}");
}

#[test]
fn fallbacks_tell_their_reason() {
    if skipped() {
        return;
    }
    const TEST: &str = "fallbacks_tell_their_reason";
    const SCRIPT: &str = "usdt:LIB:uncopy:fallback { @reasons[str(arg0, arg1)] = count(); }";
    let scratch = Scratch::new("fallbacks");
    let Some(tracer) = Tracer::start(TEST, &scratch, &injecting_library(), SCRIPT) else { return };
    // The reserve of uncopy's own memory is exhausted, as in `hostile::an_exhausted_reservoir`.
    let program = Program::new(env!("CARGO_BIN_EXE_faults")).args(["hoard"]).mode(Mode::Always);
    let program = program.library(&tracer.library).env("MAX_INJECT_RESERVE", (256 << 20).to_string());
    let done = program.run(&scratch, "hoard");
    assert!(done.status.success(), "{}", done.text());
    let counted = done.counters.expect("counters").get(Counter::Fallbacks);
    let output = tracer.finish();
    let reasons = output.lines().filter_map(|line| line.strip_prefix("@reasons[")?.split_once("]: "));
    let reasons: BTreeMap<&str, u64> =
        reasons.map(|(reason, count)| (reason, count.parse().expect("a number"))).collect();
    assert!(counted > 0);
    assert_eq!(reasons.values().sum::<u64>(), counted, "{output}");
    assert!(reasons.contains_key("no memory for an input"), "{output}");
}

/// bpftrace accepts the lines in the document, which has one for each probe.
#[test]
fn documented_lines_are_understood() {
    const TEST: &str = "documented_lines_are_understood";
    const INSTALLED: &str = "/usr/lib/uncopy/libuncopy.so";
    let text = documentation();
    let scripts = text.lines().filter_map(|line| line.strip_prefix("$ bpftrace -e '")?.split_once('\''));
    let scripts: Vec<String> =
        scripts.map(|(script, _)| script.replace(INSTALLED, library().to_str().expect("UTF-8"))).collect();
    let probes: BTreeSet<&str> = scripts
        .iter()
        .filter_map(|script| script.split_once(":uncopy:")?.1.split_whitespace().next())
        .collect();
    assert!(probes.iter().copied().eq(documented_arguments().keys().map(String::as_str)), "{probes:?}");
    if !Path::new(BPFTRACE).exists() {
        return skip(TEST, "there is no bpftrace; install it with: apt-get install bpftrace");
    }
    let scratch = Scratch::new("documented");
    for script in scripts {
        let done = Program::new(BPFTRACE).args(["-d", "-e", &script]).run(&scratch, "bpftrace");
        assert!(done.status.success(), "{script}: {}", done.text());
    }
}
