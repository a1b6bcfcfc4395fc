//! The packaged PostgreSQL, run by a user without privileges: COPY of large rows in both formats and
//! large objects, in and out. Every byte is compared.
//!
//! The rows and the objects each have a connection of their own: a client's buffer stays as large as the
//! largest row, and a short answer into so much room costs more than it should under uncopy.
//! A connection's bytes pass through buffers of 8 KiB, received and sent: what is elided is between the
//! server's own larger buffers, and the counters say how much.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use uncopy_core::stats::{Counter, Snapshot};
use uncopy_tests::artifacts::packaged;
use uncopy_tests::http::expect_same;
use uncopy_tests::random::{bytes, seed};
use uncopy_tests::running::{Finished, Running};
use uncopy_tests::scratch::{free_port, wait_until};
use uncopy_tests::{Mode, Program, Scratch};

const SIZES: [usize; 5] = [1, 65_537, 300_000, (4 << 20) + 3, 12 << 20];
const DIRECTORY: &str = "/usr/lib/postgresql/15/bin";

/// One of its programs, as nobody. With the one capability that serving page faults from inside system
/// calls needs, as README.md says; root's other ones are gone.
fn program(name: &str) -> Program {
    let path = packaged("/usr/lib/postgresql/15/bin/postgres", "postgresql-15").with_file_name(name);
    assert!(path.exists(), "{DIRECTORY}/{name} is missing");
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return Program::new(path);
    }
    Program::new(packaged("/usr/bin/setpriv", "util-linux"))
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all,+sys_ptrace"])
        .args(["--ambient-caps=+sys_ptrace", "--bounding-set=-all,+sys_ptrace"])
        .args([path])
}

/// Makes an empty database in `data`.
fn install(scratch: &Scratch) {
    std::fs::set_permissions(scratch.path(), std::fs::Permissions::from_mode(0o777)).expect("permissions");
    let done = program("initdb")
        .args(["--no-sync", "--encoding=UTF8", "--locale=C", "--auth=trust", "--username=tester", "-D"])
        .args([scratch.join("data")])
        .directory(scratch.path())
        .limit(Duration::from_secs(120))
        .run(scratch, "initdb");
    drop(done.expect_success());
}

/// Starts a server for it, whose socket is in the scratch directory.
fn start(mode: Mode, scratch: &Scratch) -> (Running, u16) {
    let port = free_port();
    let server = program("postgres")
        .args(["-D".as_ref(), scratch.join("data").as_os_str(), "-k".as_ref(), scratch.path().as_os_str()])
        .args(["-h", "127.0.0.1", "-p", &port.to_string(), "-c", "fsync=off", "-c", "shared_buffers=32MB"])
        .args(["-c", "max_wal_size=256MB", "-c", "autovacuum=off"])
        // Among its files, not in /dev/shm: a test that is ended leaves nothing behind.
        .args(["-c", "dynamic_shared_memory_type=mmap"])
        .directory(scratch.path())
        .mode(mode)
        .start(scratch, &format!("postgres-{mode:?}"));
    wait_until("PostgreSQL to be ready", || {
        server.errors().contains("ready to accept connections").then_some(())
    });
    (server, port)
}

/// Runs the commands in `file`.
fn psql(mode: Mode, scratch: &Scratch, port: u16, name: &str, file: &Path) -> Finished {
    Program::new(Path::new(DIRECTORY).join("psql"))
        .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-A", "-t", "-U", "tester", "-d", "postgres"])
        .args(["-h", "127.0.0.1", "-p", &port.to_string(), "-f"])
        .args([file])
        .directory(scratch.path())
        .mode(mode)
        .run(scratch, name)
        .expect_success()
}

fn hex(bytes: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|digit| DIGITS[usize::from(digit)]);
    digits.collect()
}

/// The rows as COPY's text format has them: a number, a tab, a value.
fn rows(contents: &[Vec<u8>]) -> Vec<u8> {
    let mut text = Vec::new();
    for (id, content) in contents.iter().enumerate() {
        text.extend_from_slice(format!("{id}\t\\\\x").as_bytes());
        text.append(&mut hex(content));
        text.push(b'\n');
    }
    text
}

/// The rows as COPY's binary format has them.
fn binary_rows(contents: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::from(b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0");
    for (id, content) in contents.iter().enumerate() {
        file.extend_from_slice(&2u16.to_be_bytes());
        for field in [&u32::try_from(id).expect("number").to_be_bytes(), content.as_slice()] {
            file.extend_from_slice(&u32::try_from(field.len()).expect("length").to_be_bytes());
            file.extend_from_slice(field);
        }
    }
    file.extend_from_slice(&u16::MAX.to_be_bytes());
    file
}

fn large_values(mode: Mode, scratch: &Scratch) {
    let seed = seed(95);
    let (server, port) = start(mode, scratch);
    let contents: Vec<Vec<u8>> =
        SIZES.iter().enumerate().map(|(number, size)| bytes(seed + number as u64, *size)).collect();
    let (text, binary) = (rows(&contents), binary_rows(&contents));
    scratch.write("in.text", &text);
    scratch.write("in.binary", &binary);
    let mut commands = String::from("drop table if exists texts, binaries;\n");
    for (table, format) in [("texts", "text"), ("binaries", "binary")] {
        // Not compressed: random bytes would not be, and the server's own copies are wanted.
        let _ = writeln!(
            commands,
            "create table {table} (id int primary key, b bytea);\n\
             alter table {table} alter b set storage external;\n\
             \\copy {table} from 'in.{format}' (format {format})\n\
             \\copy (select * from {table} order by id) to 'out.{format}' (format {format})\n\
             copy (select * from {table} order by id) to '{}/server.{format}' (format {format});",
            scratch.path().display()
        );
    }
    commands += "select count(*) from texts join binaries using (id) where texts.b = binaries.b;\n";
    if mode.effective() == Mode::Always {
        // A process that received nothing large leaves no counters behind: the shell that it starts takes them.
        let _ = writeln!(
            commands,
            "copy (select 1) to program 'cat /dev/shm/uncopy-$(id -u)/$PPID > {}/counters';",
            scratch.path().display()
        );
    }
    let file = scratch.write("rows.sql", commands);
    let done = psql(mode, scratch, port, "rows", &file);
    assert_eq!(String::from_utf8_lossy(&done.output), "5\n", "rows alike");
    if mode.effective() == Mode::Always {
        let page = std::fs::read(scratch.join("counters")).expect("counters of the server's process");
        let elided_bytes = Snapshot::parse(&page).expect("counters").get(Counter::ElidedBytes);
        assert!(elided_bytes > 0, "nothing was elided in the server");
        eprintln!("elided in the server's process: {elided_bytes} bytes");
    }
    let mut commands = String::new();
    for (id, content) in contents.iter().enumerate() {
        scratch.write(&format!("object{id}"), content);
        // From the client, and by the server itself, out and in.
        let _ = writeln!(
            commands,
            "\\lo_import 'object{id}'\n\\lo_export :LASTOID 'client{id}'\n\
             select lo_export(:LASTOID, '{home}/server{id}');\n\
             select lo_get(:LASTOID) = b from binaries where id = {id};\n\
             select lo_import('{home}/object{id}') as copy \\gset\n\\lo_export :copy 'copy{id}'\n\\lo_unlink :copy\n\
             \\lo_unlink :LASTOID",
            home = scratch.path().display()
        );
    }
    let file = scratch.write("objects.sql", commands);
    let done = psql(mode, scratch, port, "objects", &file);
    let said = String::from_utf8_lossy(&done.output).into_owned();
    assert_eq!(said.lines().filter(|line| *line == "t").count(), SIZES.len(), "objects alike\n{said}");
    let written = |name: String| {
        let content = std::fs::read(scratch.join(&name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        std::fs::remove_file(scratch.join(&name)).expect("removed");
        content
    };
    for side in ["out", "server"] {
        expect_same(&written(format!("{side}.text")), &text, &format!("{side}: COPY as text"));
        expect_same(&written(format!("{side}.binary")), &binary, &format!("{side}: COPY in binary"));
    }
    for (id, content) in contents.iter().enumerate() {
        for side in ["client", "server", "copy"] {
            expect_same(&written(format!("{side}{id}")), content, &format!("{side}: large object {id}"));
        }
    }
    let done = server.stop(libc::SIGINT).expect_success();
    assert!(
        !done.errors.contains("PANIC") && !done.errors.contains("terminated by signal"),
        "{}",
        done.text()
    );
    let _ = done.expect_counters(&[]);
}

/// One test: making the database takes longer than everything else.
#[test]
fn large_rows_and_objects() {
    let scratch = Scratch::new("postgresql");
    install(&scratch);
    for mode in Mode::BOTH {
        large_values(mode, &scratch);
    }
}
