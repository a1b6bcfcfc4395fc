//! The packaged MariaDB with blobs of up to 16 MiB: sent as statements, loaded by the server from
//! files, copied within the server, read back, and written to files. Every byte is compared.

use std::io::Write as _;
use std::path::Path;

use uncopy_core::stats::Counter;
use uncopy_testbed::servers::{Mariadb, Service as _};
use uncopy_tests::artifacts::packaged;
use uncopy_tests::http::expect_same;
use uncopy_tests::packaged_server::{PackagedServer, program};
use uncopy_tests::random::{bytes, hex, seed};
use uncopy_tests::running::Finished;
use uncopy_tests::{Mode, Program, Scratch};

const SIZES: [usize; 5] = [1, 65_537, 300_000, (4 << 20) + 3, 16 << 20];

/// Creates an empty database.
fn install(scratch: &Scratch) {
    let done = program(Mariadb::INSTALL, Mode::Plain)
        .args(Mariadb::install_arguments(scratch.path()))
        .run(scratch, "install");
    drop(done.expect_success());
}

/// Runs the statements in `file`.
fn client(mode: Mode, scratch: &Scratch, port: u16, name: &str, file: &Path) -> Finished {
    Program::new(packaged("/usr/bin/mariadb", "mariadb-client-core"))
        .args([
            "--no-defaults",
            "--protocol=tcp",
            "--host=127.0.0.1",
            "--user=root",
            "--batch",
            "--binary-mode",
        ])
        .args(["--skip-column-names", "--max-allowed-packet=128M", &format!("--port={port}")])
        .input(file)
        .mode(mode)
        .run(scratch, name)
        .expect_success()
}

fn blobs(mode: Mode, scratch: &Scratch) {
    let seed = seed(93);
    let mariadb = Mariadb { options: &["--innodb-buffer-pool-size=64M", "--secure-file-priv="] };
    let program = program(Mariadb::PROGRAM, mode);
    let server = PackagedServer::start_by(program, &mariadb, scratch, "mariadbd", scratch.path());
    let port = server.port;
    let contents: Vec<Vec<u8>> =
        SIZES.iter().enumerate().map(|(number, size)| bytes(seed + number as u64, *size)).collect();
    let mut statements = Vec::from(
        b"drop database if exists large; create database large; use large; create table blobs (id int primary key, b longblob) engine=innodb;\n",
    );
    let at = |name: &str| scratch.join(name).to_str().expect("UTF-8").to_owned();
    for (id, content) in contents.iter().enumerate() {
        scratch.write(&format!("in{id}"), content);
        let _ = write!(statements, "insert into blobs values ({id}, x'");
        statements.append(&mut hex(content));
        statements.extend_from_slice(b"');\n");
        let _ = writeln!(
            statements,
            "insert into blobs values ({}, load_file('{}'));",
            id + 100,
            at(&format!("in{id}"))
        );
        // Copies within the server, through its largest buffers.
        let _ = writeln!(
            statements,
            "insert into blobs select {}, concat(b, b, 'x') from blobs where id = {id};",
            id + 200
        );
    }
    let written = scratch.write("write.sql", statements);
    drop(client(mode, scratch, port, "writer", &written));
    let mut statements = Vec::from(b"use large;\n");
    for id in 0..contents.len() {
        for (id, kind) in [(id, "sent"), (id + 100, "loaded"), (id + 200, "doubled")] {
            let _ = writeln!(
                statements,
                "select b from blobs where id = {id} into dumpfile '{}';",
                at(&format!("{kind}{id}"))
            );
        }
        let _ = writeln!(statements, "select hex(b) from blobs where id = {id};");
    }
    let read = scratch.write("read.sql", statements);
    let done = client(mode, scratch, port, "reader", &read);
    let mut lines = done.output.split(|byte| *byte == b'\n');
    for (id, content) in contents.iter().enumerate() {
        let line = lines.next().expect("a row");
        expect_same(&line.to_ascii_lowercase(), &hex(content), &format!("blob {id}, read in hexadecimal"));
        let file = |name: String| std::fs::read(scratch.join(&name)).expect("written by the server");
        expect_same(&file(format!("sent{id}")), content, &format!("blob {id}, sent"));
        expect_same(&file(format!("loaded{}", id + 100)), content, &format!("blob {id}, loaded"));
        let doubled = [content.as_slice(), content, b"x"].concat();
        expect_same(&file(format!("doubled{}", id + 200)), &doubled, &format!("blob {id}, doubled"));
    }
    let done = server.stop(&[]);
    for id in 0..contents.len() {
        // The server refuses to overwrite a file, so the next one must find none.
        for (id, kind) in [(id, "sent"), (id + 100, "loaded"), (id + 200, "doubled")] {
            std::fs::remove_file(scratch.join(&format!("{kind}{id}"))).expect("written by the server");
        }
    }
    let _ = done.expect_counters(&[Counter::InputBytes, Counter::ElidedBytes]);
}

/// All in one test: creating the database takes longer than everything else.
#[test]
fn large_blobs() {
    let scratch = Scratch::new("mariadb");
    install(&scratch);
    for mode in Mode::FOR_APPLICATIONS {
        blobs(mode, &scratch);
    }
}
