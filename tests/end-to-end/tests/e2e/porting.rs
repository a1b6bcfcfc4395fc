//! The recipes of `docs/twin.md`: Debian's memcached with its values in memory of the twin
//! allocator, and the example program.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use uncopy_tests::artifacts::{bin_dir, packaged};
use uncopy_tests::memcached::{Memcached, SERVER, walk};
use uncopy_tests::packaged_server::PackagedServer;
use uncopy_tests::random::{Random, bytes, rounds, seed};
use uncopy_tests::running::Running;
use uncopy_tests::scratch::{connect, free_port, wait_until};
use uncopy_tests::{Program, Scratch};

fn skip(test: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

fn archive() -> String {
    let path = bin_dir().join("libuncopy_send.a");
    let path = path
        .canonicalize()
        .unwrap_or_else(|error| panic!("{}: {error}; build it with: make build", path.display()));
    path.to_str().expect("UTF-8").to_owned()
}

fn include() -> String {
    format!("-I{}", root().join("crates/sending/capi/include").display())
}

/// Forces references: otherwise nothing is lent on a machine where BBR controls congestion.
const BY_REFERENCE: (&str, &str) = ("UNCOPY_POLICY", "always");

/// Waits for the thread that the first send by reference starts.
fn expect_references(server: &Running) {
    let tasks = format!("/proc/{}/task", server.pid());
    wait_until("the thread that serves writes to protected pages", || {
        std::fs::read_dir(&tasks).ok()?.flatten().find(|task| {
            std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with("uncopy-"))
        })
    });
}

#[test]
fn memcached_from_debians_source() {
    let test = "memcached_from_debians_source";
    for (path, package) in [
        ("/usr/include/event.h", "libevent-dev"),
        ("/usr/bin/dpkg-source", "dpkg-dev"),
        ("/usr/bin/make", "make"),
    ] {
        let _ = packaged(path, package);
    }
    let scratch = Scratch::new("porting");
    let built = Command::new(root().join("examples/memcached/build"))
        .args([scratch.path().as_os_str(), "ported".as_ref()])
        .env("UNCOPY_CFLAGS", include())
        .env("UNCOPY_LIBS", format!("{} -lpthread -ldl -lm", archive()))
        .output()
        .expect("the recipe");
    let errors = String::from_utf8_lossy(&built.stderr).into_owned();
    if built.status.code() == Some(75) {
        return skip(test, errors.trim());
    }
    assert!(built.status.success(), "the recipe ended with {}: {errors}", built.status);
    let program = Program::new(scratch.join("ported/memcached")).env(BY_REFERENCE.0, BY_REFERENCE.1);
    let server = PackagedServer::start_by(program, &SERVER, &scratch, "memcached", scratch.path());
    let address = server.address();
    let mut client = Memcached::open(address).expect("a connection");
    let value = bytes(1, 300_000);
    assert_eq!(client.store("set", "kept", &value).as_deref(), Ok("STORED"));
    let mut read_value = || client.get_many(&["kept"]).expect("a value").remove(0).2;
    for _ in 0..50 {
        assert!(read_value() == value, "another value");
    }
    expect_references(&server.running);
    let seed = seed(91);
    eprintln!("seed {seed}");
    std::thread::scope(|scope| {
        for number in 0..2 {
            scope.spawn(move || {
                let mut random = Random::new(seed + number);
                let mut client = Memcached::open(address).expect("a connection");
                walk(&mut client, &format!("client{number}"), &mut random, rounds(60));
            });
        }
    });
    assert!(read_value() == value, "another value after all");
    drop(client);
    let _ = server.stop(&[]);
}

#[test]
fn example_server() {
    let scratch = Scratch::new("example");
    let program = scratch.join("serve");
    let _ = Program::new(packaged("/usr/bin/cc", "gcc"))
        .args(["-std=c99", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-pedantic", "-Werror", &include(), "-o"])
        .args([program.as_path(), root().join("examples/serve.c").as_path()])
        .args([&archive(), "-lpthread", "-ldl", "-lm"])
        .run(&scratch, "compile")
        .expect_success();
    let value = bytes(3, 1_000_001);
    let file = scratch.write("value", &value);
    let port = free_port();
    let server = Program::new(program)
        .args([port.to_string().as_ref(), file.as_os_str()])
        .env(BY_REFERENCE.0, BY_REFERENCE.1)
        .start(&scratch, "serve");
    for _ in 0..20 {
        let mut found = Vec::new();
        connect(port).read_to_end(&mut found).expect("value");
        assert!(found == value, "another value");
    }
    expect_references(&server);
    let _ = server.stop(libc::SIGKILL);
}
