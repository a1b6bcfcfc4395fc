//! The packaged Varnish in front of nginx: large objects in its malloc storage, fetched once and
//! delivered often, whole and in parts, to several concurrent clients. Every byte is compared.

use std::path::PathBuf;

use uncopy_core::stats::Counter;
use uncopy_testbed::servers::Varnish;
use uncopy_tests::http::{ab, curl, expect_same, wrk};
use uncopy_tests::packaged_server::PackagedServer;
use uncopy_tests::random::{bytes, seed};
use uncopy_tests::{Mode, Scratch};

const SIZES: [usize; 5] = [1, 40_000, 300_001, (2 << 20) + 17, (12 << 20) + 3];

const ON_REQUEST: &str = r#"if (req.method != "GET") { return (pass); }
    if (req.url ~ "^/pass/") { return (pass); }
    return (hash);"#;
const ON_ANSWER: &str = r#"if (bereq.url ~ "^/whole/") { set beresp.do_stream = false; }
    if (bereq.url ~ "^/zipped/") { set beresp.do_gzip = true; }"#;
const PARAMETERS: [&str; 5] =
    ["thread_pools=1", "thread_pool_min=8", "thread_pool_max=40", "vsl_space=4M", "workspace_backend=256k"];

fn deliveries(mode: Mode) {
    let scratch = Scratch::new("varnish");
    let seed = seed(83);
    let root = scratch.directory("root");
    let mut files: Vec<(usize, PathBuf, Vec<u8>)> = Vec::new();
    for (number, size) in SIZES.into_iter().enumerate() {
        let content = bytes(seed + number as u64, size);
        files.push((size, scratch.write(&format!("root/{size}"), &content), content));
    }
    let all: String = ["stream", "whole", "pass", "zipped"]
        .iter()
        .map(|kind| format!("    location /{kind}/ {{ alias {}/; }}\n", root.display()))
        .collect();
    let backend = PackagedServer::nginx(
        mode.backend(),
        &scratch,
        "back",
        &format!(
            "{all}    location /up/ {{ root {}; dav_methods PUT; create_full_put_path on; }}\n",
            root.display()
        ),
    );
    let varnish = Varnish {
        backend: backend.address(),
        on_request: ON_REQUEST,
        on_answer: ON_ANSWER,
        parameters: &PARAMETERS,
    };
    let server = PackagedServer::start(&varnish, mode, &scratch, "varnishd");
    let url = |path: &str| server.url(path);
    // The first round is a miss, delivered while it is fetched; the second is a hit.
    for round in ["miss", "hit"] {
        for kind in ["stream", "whole", "pass", "zipped"] {
            for (size, _, content) in &files {
                let path = format!("/{kind}/{size}");
                expect_same(&curl(mode, &scratch, &[&url(&path)]), content, &format!("{round} of {path}"));
            }
        }
    }
    let (largest, _, content) = files.last().expect("a file");
    for (first, last) in
        [(0, 0), (4095, 4096), (5000, 99_999), (1 << 20, (9 << 20) + 1), (largest - 70_000, largest - 1)]
    {
        let path = format!("/stream/{largest}");
        let part = curl(mode, &scratch, &["-r", &format!("{first}-{last}"), &url(&path)]);
        expect_same(&part, &content[first..=last], &format!("bytes {first} to {last} of {path}"));
    }
    // Six clients at once ask for a new object: one fetch, streamed to all of them.
    let new = bytes(seed + 50, (7 << 20) + 11);
    scratch.write("root/new", &new);
    std::thread::scope(|scope| {
        for client in 0..6 {
            let (scratch, new, url) = (&scratch, &new, url("/stream/new"));
            scope.spawn(move || {
                expect_same(&curl(mode, scratch, &[&url]), new, &format!("the new one, client {client}"))
            });
        }
    });
    for (size, path, content) in &files[1..] {
        let up = url(&format!("/up/{size}"));
        let _ = curl(mode, &scratch, &["-T", path.to_str().expect("UTF-8"), &up]);
        let stored = std::fs::read(root.join("up").join(size.to_string())).expect("uploaded file");
        expect_same(&stored, content, &format!("upload of {size}"));
    }
    ab(mode, &scratch, &url("/stream/300001"), 300_001, 60, 4);
    let paths: Vec<String> = SIZES[1..4].iter().map(|size| format!("/whole/{size}")).collect();
    let paths: Vec<_> =
        paths.iter().zip(&files[1..]).map(|(paths, (_, file, _))| (paths.as_str(), file.as_path())).collect();
    let answers = wrk(mode, &scratch, &url(""), &paths, 2);
    eprintln!("{answers} answers compared");
    let _ = server.stop(&[Counter::InputBytes, Counter::OutputBytes]);
    let _ = backend.stop(&[]);
}

#[test]
fn deliveries_with_everything_elided() {
    deliveries(Mode::Always);
}

#[test]
fn deliveries_with_the_default_policy() {
    deliveries(Mode::Sliced);
}

#[test]
fn deliveries_by_lanes() {
    deliveries(Mode::Lanes);
}
