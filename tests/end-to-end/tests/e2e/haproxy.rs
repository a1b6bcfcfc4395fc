//! The packaged HAProxy with large buffers between curl and nginx, as an HTTP and as a TCP proxy.
//! Every byte is compared.

use std::path::Path;

use uncopy_core::stats::Counter;
use uncopy_testbed::servers::Haproxy;
use uncopy_tests::http::{ab, curl, expect_same, wrk};
use uncopy_tests::packaged_server::PackagedServer;
use uncopy_tests::random::{bytes, seed};
use uncopy_tests::scratch::{connect, free_port};
use uncopy_tests::{Mode, Scratch};

const SIZES: [usize; 5] = [1, 65_537, 300_000, (1 << 20) + 1, (12 << 20) + 3];

fn upload_and_download(mode: Mode) {
    let scratch = Scratch::new("haproxy");
    let seed = seed(85);
    let root = scratch.directory("root");
    let backend = PackagedServer::nginx(
        mode.backend(),
        &scratch,
        "back",
        &format!("    location / {{ root {}; dav_methods PUT; create_full_put_path on; }}\n", root.display()),
    );
    let (tcp, back) = (free_port(), backend.address());
    let haproxy = Haproxy {
        threads: 2,
        buffer_bytes: 262_144,
        global: &format!(
            "  tune.maxrewrite 4096\n  stats socket {}/haproxy.sock\n",
            scratch.path().display()
        ),
        // HAProxy 2.6 may crash when it exits with idle server connections (its issue 2114): plain,
        // 12 runs in 150. Without reuse there are none.
        proxy: &format!("  http-reuse never\n  server back {back}\n"),
        sections: &format!("listen tcp\n  mode tcp\n  bind 127.0.0.1:{tcp}\n  server back {back}\n"),
    };
    let server = PackagedServer::start(&haproxy, mode, &scratch, "haproxy");
    let http = server.port;
    drop(connect(tcp));
    let mut files = Vec::new();
    for (number, size) in SIZES.into_iter().enumerate() {
        let content = bytes(seed + number as u64, size);
        let file = scratch.write(&size.to_string(), &content);
        for (port, name) in [(http, "http"), (tcp, "tcp")] {
            let url = format!("http://127.0.0.1:{port}/{name}/{size}");
            let _ = curl(mode, &scratch, &["-T", file.to_str().expect("UTF-8"), &url]);
            let stored = std::fs::read(root.join(name).join(size.to_string())).expect("uploaded file");
            expect_same(&stored, &content, &format!("upload of {size} by {name}"));
            expect_same(&curl(mode, &scratch, &[&url]), &content, &format!("download of {size} by {name}"));
        }
        files.push((format!("/http/{size}"), file));
    }
    ab(mode, &scratch, &server.url("/http/300000"), 300_000, 60, 4);
    let paths: Vec<(&str, &Path)> =
        files[1..4].iter().map(|(path, file)| (path.as_str(), file.as_path())).collect();
    let answers = wrk(mode, &scratch, &server.url(""), &paths, 2);
    eprintln!("{answers} answers compared");
    let _ = server.stop(&[Counter::InputBytes, Counter::OutputBytes]);
    let _ = backend.stop(&[]);
}

#[test]
fn proxied_transfers_with_everything_elided() {
    upload_and_download(Mode::Always);
}

#[test]
fn proxied_transfers_with_the_default_policy() {
    upload_and_download(Mode::Auto);
}

#[test]
fn proxied_transfers_by_lanes() {
    upload_and_download(Mode::Lanes);
}
