//! The packaged PostgreSQL, run by an unprivileged user: COPY of large rows in both formats, and
//! large objects, in and out. Every byte is compared.
//!
//! The rows and the objects have a connection each: a client's buffer stays as large as the largest
//! row, and a short answer received into that much room costs more than it should under uncopy. A
//! connection's bytes pass through buffers of 8 KiB, received and sent. So bytes are elided only
//! between the server's own larger buffers, as the counters show.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use uncopy_core::stats::{Counter, Snapshot};
use uncopy_testbed::servers::{Postgresql, Service as _};
use uncopy_testbed::{Package, nobody};
use uncopy_tests::artifacts::installed;
use uncopy_tests::counters::stats_name;
use uncopy_tests::http::expect_same;
use uncopy_tests::packaged_server::{PackagedServer, program};
use uncopy_tests::random::{bytes, hex, seed};
use uncopy_tests::running::Finished;
use uncopy_tests::scratch::wait_until;
use uncopy_tests::{Mode, Program, Scratch};

const SIZES: [usize; 5] = [1, 65_537, 300_000, (4 << 20) + 3, 12 << 20];
const SERVER: Postgresql = Postgresql { shared_mib: 32, by_unix: true };

/// Returns one of PostgreSQL's programs, to be run as nobody. Of root's capabilities it keeps only
/// the one for serving page faults inside system calls (docs/reference.md).
fn as_nobody(package: Package, mode: Mode) -> Program {
    // SAFETY: geteuid(2) takes no arguments and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return program(package, mode);
    }
    program(nobody::SETPRIV, mode).args(nobody::arguments(nobody::FAULTS)).args([installed(package)])
}

/// Creates an empty database in `data`.
fn install(scratch: &Scratch) {
    std::fs::set_permissions(scratch.path(), std::fs::Permissions::from_mode(0o777)).expect("permissions");
    let done = as_nobody(Postgresql::INSTALL, Mode::Plain)
        .args(Postgresql::install_arguments(scratch.path()))
        .directory(scratch.path())
        .run(scratch, "initdb");
    drop(done.expect_success());
}

/// Runs the commands in `file`.
fn psql(mode: Mode, scratch: &Scratch, port: u16, name: &str, file: &Path) -> Finished {
    program(Postgresql::CLIENT, mode)
        .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-A", "-t", "-U", Postgresql::USER, "-d", "postgres"])
        .args(["-h", "127.0.0.1", "-p", &port.to_string(), "-f"])
        .args([file])
        .directory(scratch.path())
        .run(scratch, name)
        .expect_success()
}

/// Returns the rows in COPY's text format: a number, a tab, a value.
fn rows(contents: &[Vec<u8>]) -> Vec<u8> {
    let mut text = Vec::new();
    for (id, content) in contents.iter().enumerate() {
        text.extend_from_slice(format!("{id}\t\\\\x").as_bytes());
        text.append(&mut hex(content));
        text.push(b'\n');
    }
    text
}

/// Returns the rows in COPY's binary format.
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
    let program = as_nobody(Postgresql::PROGRAM, mode).directory(scratch.path());
    let server =
        PackagedServer::start_by(program, &SERVER, scratch, &format!("postgres-{mode:?}"), scratch.path());
    let port = server.port;
    wait_until("PostgreSQL to be ready", || {
        server.running.errors().contains("ready to accept connections").then_some(())
    });
    let contents: Vec<Vec<u8>> =
        SIZES.iter().enumerate().map(|(number, size)| bytes(seed + number as u64, *size)).collect();
    let (text, binary) = (rows(&contents), binary_rows(&contents));
    scratch.write("in.text", &text);
    scratch.write("in.binary", &binary);
    let mut commands = String::from("drop table if exists texts, binaries;\n");
    for (table, format) in [("texts", "text"), ("binaries", "binary")] {
        // Store uncompressed. Random bytes do not compress, and the test needs the server's own copies.
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
        // A process that received nothing large writes no counters: a shell that it starts saves them.
        let _ = writeln!(
            commands,
            "copy (select 1) to program 'cat /dev/shm/uncopy-$(id -u)/$PPID{} > {}/counters';",
            stats_name(1).to_string().split_off(1),
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
        // COPY from the client, and by the server itself, out and in.
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
    let output = String::from_utf8_lossy(&done.output).into_owned();
    assert_eq!(output.lines().filter(|line| *line == "t").count(), SIZES.len(), "objects alike\n{output}");
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
    let _ = server.stop(&[]);
}

/// All in one test: creating the database takes longer than everything else.
#[test]
fn large_rows_and_objects() {
    let scratch = Scratch::new("postgresql");
    install(&scratch);
    for mode in Mode::FOR_APPLICATIONS {
        large_values(mode, &scratch);
    }
}
