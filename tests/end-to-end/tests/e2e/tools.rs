//! Everyday programs on files and pipes: the output is the same as without uncopy.

use std::collections::BTreeMap;
use std::path::Path;

use uncopy_core::stats::Counter;
use uncopy_testbed::servers::{HttpServer, PYTHON};
use uncopy_tests::artifacts::packaged;
use uncopy_tests::packaged_server::{PackagedServer, program};
use uncopy_tests::random::{Random, bytes, seed};
use uncopy_tests::{Mode, Program, Scratch};

const READS: &[Counter] = &[Counter::InputBytes];

/// Creates the scripts' input: a file of 6 MiB, a file of lines, and a directory tree.
fn prepare(directory: &Path) {
    let seed = seed(91);
    let mut random = Random::new(seed);
    std::fs::create_dir_all(directory.join("tree/deep/deeper")).expect("directory");
    std::fs::write(directory.join("big"), bytes(seed, (6 << 20) + 123)).expect("file");
    let lines: String =
        (0..150_000).map(|_| format!("{} line {}\n", random.below(1000), random.next_u64())).collect();
    std::fs::write(directory.join("lines"), lines).expect("file");
    for (number, name) in
        ["tree/a", "tree/b", "tree/deep/c", "tree/deep/deeper/d", "tree/deep/e"].iter().enumerate()
    {
        let len = random.length(3 << 20);
        std::fs::write(directory.join(name), bytes(seed + number as u64, len)).expect("file");
    }
}

/// Returns every file below a directory, with its contents.
fn contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(directory).expect("directory") {
        let path = entry.expect("entry").path();
        let name = path.file_name().expect("name").to_string_lossy().into_owned();
        if path.is_dir() {
            files
                .extend(contents(&path).into_iter().map(|(inner, bytes)| (format!("{name}/{inner}"), bytes)));
        } else {
            files.insert(name, std::fs::read(&path).expect("file"));
        }
    }
    files
}

/// Runs a shell script plain and in each mode, in new directories; output and files must be the same.
fn compare_with_plain(script: &str, expected: &[Counter]) {
    let run = |mode: Mode| {
        let scratch = Scratch::new("tools");
        let home = scratch.directory("home");
        prepare(&home);
        let program = Program::shell(script).directory(&home).mode(mode);
        let done = program.run(&scratch, "script").expect_success();
        (contents(&home), done)
    };
    let (plain_files, plain) = run(Mode::Plain);
    for mode in Mode::FOR_APPLICATIONS {
        let (files, done) = run(mode);
        let done = done.expect_counters(expected);
        assert!(
            done.output == plain.output,
            "mode {mode:?} printed\n{}\nplain\n{}",
            done.text(),
            plain.text()
        );
        let names: Vec<_> = files.keys().collect();
        assert_eq!(names, plain_files.keys().collect::<Vec<_>>(), "files in mode {mode:?}");
        for (name, content) in &files {
            assert!(*content == plain_files[name], "{name} has another content in mode {mode:?}");
        }
    }
}

#[test]
fn tar_through_a_pipe() {
    compare_with_plain(
        "mkdir out && tar -cf - --sort=name --mtime=@0 tree big | tee archive | tar -xf - -C out && \
         tar -tvf archive && diff -r tree out/tree && cmp big out/big && \
         tar -b 2048 --sort=name --mtime=@0 -cf wide tree && tar -b 2048 -xf wide -C out",
        &[],
    );
}

#[test]
fn openssl_on_pipes() {
    let _ = packaged("/usr/bin/openssl", "openssl");
    compare_with_plain(
        "key='-K 00112233445566778899aabbccddeeff -iv 0102030405060708090a0b0c0d0e0f10' && \
         cat big | openssl enc -aes-128-ctr $key -bufsize 1048576 | tee cipher | \
            openssl enc -d -aes-128-ctr $key -bufsize 262144 > decrypted && cmp big decrypted && \
         openssl dgst -sha256 < cipher && openssl base64 < big | openssl base64 -d | openssl dgst -sha256 && \
         openssl speed -seconds 1 -bytes 65536 -evp aes-128-ctr > /dev/null 2>&1",
        READS,
    );
}

#[test]
fn dd_cat_and_cp() {
    compare_with_plain(
        "dd if=big bs=1M status=none | dd bs=64k iflag=fullblock status=none | dd of=copy bs=100001 status=none && \
         dd if=big of=direct bs=256k iflag=direct status=none && cmp big direct && \
         cat big lines big | cat | cat > joined && cp --reflink=never big copied && \
         cp --sparse=always joined sparse && head -c 5000000 joined | tail -c 3000000 > middle && \
         split -b 1500000 big part. && cat part.* | cmp - big && sha256sum copy copied joined middle",
        READS,
    );
}

#[test]
fn sort_and_gzip() {
    compare_with_plain(
        "sort -S 32M lines > sorted && sort -n -S 1M --parallel=2 lines | uniq -c | tail -n 1000 > counted && \
         gzip -nc < big > big.gz && gzip -dc big.gz | cmp - big && cat lines | gzip -n1 | gzip -dc | \
         awk '{ sum += $1 } END { print sum }' && grep -c 77 lines && wc lines && tr a-z A-Z < lines > upper",
        &[],
    );
}

/// curl under uncopy reads files, and downloads from a plain HTTP server.
#[test]
fn curl_from_files_and_over_http() {
    let curl = packaged("/usr/bin/curl", "curl");
    let scratch = Scratch::new("curl");
    let content = bytes(seed(95), (9 << 20) + 7);
    let file = scratch.write("content", &content);
    let plain = program(PYTHON, Mode::Plain);
    let server = PackagedServer::start_by(plain, &HttpServer, &scratch, "server", scratch.path());
    for mode in Mode::FOR_APPLICATIONS {
        for (url, expected) in
            [(server.url("/content"), READS), (format!("file://{}", file.display()), READS)]
        {
            let run = Program::new(&curl).args(["-sS", "--fail", "--max-time", "40", &url]).mode(mode);
            let done = run.run(&scratch, "curl").expect_success().expect_counters(expected);
            assert!(done.output == content, "{url} in mode {mode:?}");
        }
    }
    drop(server);
}
