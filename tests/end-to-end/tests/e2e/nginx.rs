//! The packaged nginx: large static files, proxied uploads and downloads, with curl as the client,
//! and ab and wrk for many requests, also under uncopy. Every byte is compared (by ab: every
//! length).

use std::path::{Path, PathBuf};

use uncopy_core::stats::Counter;
use uncopy_tests::http::{ab, curl, expect_same, wrk};
use uncopy_tests::packaged_server::PackagedServer;
use uncopy_tests::random::{bytes, seed};
use uncopy_tests::{Mode, Scratch};

const SIZES: [usize; 6] = [1, 4096, 65_537, 300_000, (1 << 20) + 1, (12 << 20) + 3];

/// Creates the files to be served, and returns them with their contents.
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
    let nginx = PackagedServer::nginx(mode, &scratch, "front", &locations);
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
    let _ = nginx.stop(&[Counter::InputBytes, Counter::OutputBytes]);
}

fn proxied(mode: Mode) {
    let scratch = Scratch::new("nginx-proxied");
    let files = files(&scratch);
    let root = scratch.directory("uploads").to_str().expect("UTF-8").to_owned();
    let back = PackagedServer::nginx(
        mode.backend(),
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
    let front = PackagedServer::nginx(mode, &scratch, "front", &locations);
    for (path, content) in &files {
        let name = path.file_name().and_then(|name| name.to_str()).expect("UTF-8");
        for location in ["buffered", "large", "through", "file"] {
            let url = front.url(&format!("/{location}/{name}"));
            let _ = curl(mode, &scratch, &["-T", path.to_str().expect("UTF-8"), &url]);
            let stored = std::fs::read(Path::new(&root).join(location).join(name)).expect("uploaded file");
            expect_same(&stored, content, &format!("upload of {location}/{name}"));
            expect_same(&curl(mode, &scratch, &[&url]), content, &format!("download of {location}/{name}"));
        }
    }
    let _ = front.stop(&[Counter::InputBytes, Counter::OutputBytes]);
    let _ = back.stop(&[]);
}

/// Runs many concurrent requests, for static files and through a proxy that buffers them.
fn many_requests(mode: Mode) {
    let scratch = Scratch::new("nginx-many");
    let files = files(&scratch);
    let root = scratch.path().to_str().expect("UTF-8").to_owned();
    let copied = format!("    location /files/ {{ root {root}; sendfile off; output_buffers 2 256k; }}\n");
    let back = PackagedServer::nginx(mode.backend(), &scratch, "back", &copied);
    let proxied = format!(
        "{copied}    location /proxied/ {{ proxy_pass {}/; proxy_buffers 8 256k; proxy_busy_buffers_size 512k; }}\n",
        back.url("")
    );
    let front = PackagedServer::nginx(mode, &scratch, "front", &proxied);
    for path in ["/files/", "/proxied/files/"] {
        for size in [4096, 300_000, (1 << 20) + 1] {
            ab(mode, &scratch, &front.url(&format!("{path}{size}")), size, 60, 4);
        }
        let paths: Vec<String> = SIZES[2..].iter().map(|size| format!("{path}{size}")).collect();
        let paths: Vec<(&str, &Path)> = paths
            .iter()
            .zip(&files[2..])
            .map(|(paths, (file, _))| (paths.as_str(), file.as_path()))
            .collect();
        let answers = wrk(mode, &scratch, &front.url(""), &paths, 2);
        eprintln!("{path}: {answers} answers compared");
    }
    let _ = front.stop(&[Counter::InputBytes, Counter::OutputBytes]);
    let _ = back.stop(&[]);
}

#[test]
fn many_requests_with_everything_elided() {
    many_requests(Mode::Always);
}

#[test]
fn many_requests_with_the_default_policy() {
    many_requests(Mode::Auto);
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

#[test]
fn static_files_by_lanes() {
    static_files(Mode::Lanes);
}

#[test]
fn proxied_transfers_by_lanes() {
    proxied(Mode::Lanes);
}

#[test]
fn many_requests_by_lanes() {
    many_requests(Mode::Lanes);
}
