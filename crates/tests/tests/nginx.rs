//! The packaged nginx: large static files, proxied uploads and downloads, with curl as the client,
//! also under uncopy. Every byte is compared.

use std::path::{Path, PathBuf};

use uncopy_core::stats::Counter;
use uncopy_tests::artifacts::packaged;
use uncopy_tests::random::{bytes, seed};
use uncopy_tests::running::Running;
use uncopy_tests::scratch::{connect, free_port};
use uncopy_tests::{Mode, Program, Scratch};

const SIZES: [usize; 6] = [1, 4096, 65_537, 300_000, (1 << 20) + 1, (12 << 20) + 3];

/// A server: front and back are two of them.
struct Nginx {
    server: Running,
    port: u16,
}

impl Nginx {
    fn start(mode: Mode, scratch: &Scratch, name: &str, locations: &str) -> Self {
        let port = free_port();
        let home = scratch.directory(name);
        let path = home.to_str().expect("UTF-8");
        // SAFETY: geteuid has no preconditions.
        let user = if unsafe { libc::geteuid() } == 0 { "user root;" } else { "" };
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|kind| format!("  {kind}_temp_path {path}/{kind};\n"))
            .collect();
        let configuration = format!(
            "{user}\nworker_processes 2;\ndaemon off;\nmaster_process on;\npid {path}/pid;\n\
             error_log {path}/error.log warn;\nevents {{ worker_connections 64; }}\n\
             http {{\n  access_log off;\n{temporary}  client_max_body_size 0;\n\
             server {{\n    listen 127.0.0.1:{port};\n{locations}  }}\n}}\n"
        );
        let file = scratch.write(&format!("{name}.conf"), configuration);
        let server = Program::new(packaged("/usr/sbin/nginx", "nginx"))
            .args(["-p", path, "-c", file.to_str().expect("UTF-8")])
            .mode(mode)
            .start(scratch, &format!("{name}-nginx"));
        drop(connect(port));
        Self { server, port }
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    fn stop(self, home: &Path, expected: &[Counter]) {
        let done = self.server.stop(libc::SIGQUIT).expect_success();
        let log = std::fs::read_to_string(home.join("error.log")).unwrap_or_default();
        assert!(!log.contains("exited on signal") && !log.contains("[alert]"), "{log}");
        let _ = done.expect_counters(expected);
    }
}

/// Runs curl; gives what it wrote.
fn curl(mode: Mode, scratch: &Scratch, arguments: &[&str]) -> Vec<u8> {
    let output = scratch.join("curl.bin");
    let done = Program::new(packaged("/usr/bin/curl", "curl"))
        .args(["-sS", "--fail", "--max-time", "40", "-o", output.to_str().expect("UTF-8")])
        .args(arguments)
        .mode(mode)
        .run(scratch, "curl")
        .expect_success();
    drop(done);
    let bytes = std::fs::read(&output).unwrap_or_default();
    // An answer without a body leaves no file.
    let _ = std::fs::remove_file(&output);
    bytes
}

/// The files that are served, with their contents.
fn files(scratch: &Scratch) -> Vec<(PathBuf, Vec<u8>)> {
    let _ = scratch.directory("files");
    SIZES
        .iter()
        .enumerate()
        .map(|(number, size)| {
            let content = bytes(seed(81) + number as u64, *size);
            (scratch.write(&format!("files/{size}"), &content), content)
        })
        .collect()
}

fn expect_same(found: &[u8], expected: &[u8], what: &str) {
    let wrong = found.iter().zip(expected).position(|(found, expected)| found != expected);
    assert!(wrong.is_none(), "{what}: byte {wrong:?} is wrong");
    assert_eq!(found.len(), expected.len(), "{what}: length");
}

fn static_files(mode: Mode) {
    let scratch = Scratch::new("nginx-static");
    let files = files(&scratch);
    let root = scratch.path().to_str().expect("UTF-8").to_owned();
    let locations = format!(
        "    location /sendfile/ {{ alias {root}/files/; sendfile on; }}\n\
             location /copied/ {{ alias {root}/files/; sendfile off; output_buffers 2 256k; }}\n\
             location /small/ {{ alias {root}/files/; sendfile off; output_buffers 1 32k; }}\n\
             location /direct/ {{ alias {root}/files/; sendfile off; directio 512; output_buffers 1 512k; }}\n\
             location /zipped/ {{ alias {root}/files/; gzip on; gzip_types *; gzip_min_length 1; }}\n"
    );
    let nginx = Nginx::start(mode, &scratch, "front", &locations);
    for (path, content) in &files {
        let name = path.file_name().and_then(|name| name.to_str()).expect("UTF-8");
        for location in ["sendfile", "copied", "small", "direct"] {
            let got = curl(mode, &scratch, &[&nginx.url(&format!("/{location}/{name}"))]);
            expect_same(&got, content, &format!("/{location}/{name}"));
        }
        let got = curl(mode, &scratch, &["--compressed", &nginx.url(&format!("/zipped/{name}"))]);
        expect_same(&got, content, &format!("/zipped/{name}"));
        if content.len() > 100_000 {
            let got = curl(mode, &scratch, &["-r", "5000-99999", &nginx.url(&format!("/copied/{name}"))]);
            expect_same(&got, &content[5000..100_000], &format!("a part of /copied/{name}"));
        }
    }
    nginx.stop(&scratch.join("front"), &[Counter::InputBytes, Counter::OutputBytes]);
}

fn proxied(mode: Mode) {
    let scratch = Scratch::new("nginx-proxied");
    let files = files(&scratch);
    let root = scratch.directory("uploads").to_str().expect("UTF-8").to_owned();
    let back = Nginx::start(
        Mode::Plain,
        &scratch,
        "back",
        &format!("    location / {{ root {root}; dav_methods PUT; create_full_put_path on; }}\n"),
    );
    let up = back.url("");
    let locations = format!(
        "    proxy_http_version 1.1;\n\
             location /buffered/ {{ proxy_pass {up}/buffered/; proxy_request_buffering on; \
                client_body_buffer_size 1m; proxy_buffering on; proxy_buffers 8 256k; \
                proxy_busy_buffers_size 512k; }}\n\
             location /large/ {{ proxy_pass {up}/large/; proxy_request_buffering on; \
                client_body_buffer_size 16m; proxy_buffering on; proxy_buffers 4 4m; \
                proxy_busy_buffers_size 8m; }}\n\
             location /through/ {{ proxy_pass {up}/through/; proxy_request_buffering off; \
                client_body_buffer_size 1m; proxy_buffering off; }}\n\
             location /file/ {{ proxy_pass {up}/file/; client_body_in_file_only clean; \
                client_body_buffer_size 128k; proxy_max_temp_file_size 64m; }}\n"
    );
    let front = Nginx::start(mode, &scratch, "front", &locations);
    for (path, content) in &files {
        let name = path.file_name().and_then(|name| name.to_str()).expect("UTF-8");
        for location in ["buffered", "large", "through", "file"] {
            let url = front.url(&format!("/{location}/{name}"));
            curl(mode, &scratch, &["-T", path.to_str().expect("UTF-8"), &url]);
            let stored = std::fs::read(Path::new(&root).join(location).join(name)).expect("uploaded file");
            expect_same(&stored, content, &format!("upload of {location}/{name}"));
            expect_same(&curl(mode, &scratch, &[&url]), content, &format!("download of {location}/{name}"));
        }
    }
    front.stop(&scratch.join("front"), &[Counter::InputBytes, Counter::OutputBytes]);
    back.stop(&scratch.join("back"), &[]);
}

#[test]
fn static_files_with_everything_elided() {
    static_files(Mode::Always);
}

#[test]
fn static_files_with_the_default_policy() {
    static_files(Mode::Auto);
}

#[test]
fn proxied_transfers_with_everything_elided() {
    proxied(Mode::Always);
}

#[test]
fn proxied_transfers_with_the_default_policy() {
    proxied(Mode::Auto);
}
