//! Files that change while they are served: nobody waits for ever, nothing ends the server, and an answer
//! that promised more than there is ends early.

use std::fs::OpenOptions;
use std::sync::OnceLock;

use crate::support::{Client, Files, bytes, for_each_way, keeps, settle};
use uncopy_tests::Scratch;
use uncopy_tests::http::expect_same;

const LEN: usize = 8 << 20;

/// The bytes of the large file.
fn large() -> &'static [u8] {
    static LARGE: OnceLock<Vec<u8>> = OnceLock::new();
    LARGE.get_or_init(|| bytes(1, LEN))
}

fn fill(scratch: &Scratch) {
    scratch.write("root/large", large());
    scratch.write("root/small", b"small");
}

/// Asks for the large file and reads nothing but the head, so that most of it waits to be sent.
fn begin(files: &Files) -> Client {
    let mut client = files.connect();
    client.say("GET /large HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(client.head().status, 200);
    client
}

#[test]
fn a_file_cut_short_while_it_is_sent_ends_the_answer_and_not_the_server() {
    let sent = large();
    for_each_way(|way| {
        for len in [0, 5000, LEN as u64 - 10] {
            let files = Files::start(way, &["--way", way, "--threads", "1"], fill);
            let mut client = begin(&files);
            let cut = OpenOptions::new().write(true).open(files.path("large")).expect("the file");
            cut.set_len(len).expect("cut");
            let body = client.rest_until(LEN);
            // In twin memory it is all there still.
            if !keeps(way) && len < LEN as u64 / 2 {
                assert!(body.len() < LEN, "{way} {len}: there were not so many bytes");
            }
            // The kernel clears the rest of the page that is cut, also where it was sent already.
            let or_cleared = |found: &[u8], sent: &[u8]| {
                found == sent || found.iter().zip(sent).all(|(found, sent)| found == sent || *found == 0)
            };
            let right = body
                .chunks(4096)
                .zip(sent.chunks(4096))
                .all(|(found, sent)| or_cleared(found, &sent[..found.len()]));
            assert!(right, "{way} {len}: bytes of another file");
            assert_eq!(files.get("/small", "").body, b"small", "{way} {len}");
            drop(files.stop());
        }
    });
}

#[test]
fn a_file_replaced_while_it_is_sent_is_sent_as_it_was() {
    for_each_way(|way| {
        let files = Files::start(way, &["--way", way, "--threads", "1"], fill);
        let mut client = begin(&files);
        let other = files.scratch.write("root/other", bytes(2, LEN));
        std::fs::rename(other, files.path("large")).expect("renamed");
        expect_same(&client.bytes(LEN), large(), &format!("{way}: the old one"));
        client.say("GET /large HTTP/1.1\r\nHost: h\r\n\r\n");
        expect_same(&client.answer(true).body, &bytes(2, LEN), &format!("{way}: the new one"));
        std::fs::remove_file(files.path("large")).expect("removed");
        client.say("GET /large HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(client.answer(true).status, 404);
        drop(files.stop());
    });
}

#[test]
fn every_answer_is_of_the_last_state_of_a_file_that_is_replaced_often() {
    for_each_way(|way| {
        let files = Files::start(way, &["--way", way, "--threads", "2"], fill);
        let mut client = files.connect();
        for round in 0..200u64 {
            let content = bytes(round, 20_000 + usize::try_from(round % 3).expect("small"));
            let other = files.scratch.write("root/next", &content);
            std::fs::rename(other, files.path("small")).expect("renamed");
            for _ in 0..2 {
                client.say("GET /small HTTP/1.1\r\nHost: h\r\n\r\n");
                expect_same(&client.answer(true).body, &content, &format!("{way} {round}"));
            }
        }
        drop(files.stop());
    });
}

#[test]
fn a_file_overwritten_in_place_leaves_twin_memory() {
    let words = ["--way", "twin", "--threads", "1", "--reference-from", "1"];
    let files = Files::start("overwritten", &words, fill);
    let file = OpenOptions::new().write(true).open(files.path("small")).expect("the file");
    let mut client = files.connect();
    for round in 0..300u64 {
        // The same length each time: only its times tell.
        let content = bytes(round, 10_000);
        std::os::unix::fs::FileExt::write_all_at(&file, &content, 0).expect("written");
        if round % 30 == 0 {
            // It is kept once it is old enough.
            settle();
        }
        for _ in 0..2 {
            client.say("GET /small HTTP/1.1\r\nHost: h\r\n\r\n");
            expect_same(&client.answer(true).body, &content, &format!("round {round}"));
        }
    }
    drop(files.stop());
}

#[test]
fn an_answer_from_twin_memory_keeps_its_bytes_whatever_becomes_of_the_file() {
    for way in ["twin", "twin --reference-from=1"] {
        let files = Files::start("kept", &["--way", way, "--threads", "1"], fill);
        settle();
        let expected = large();
        let mut clients: Vec<Client> = (0..4).map(|_| begin(&files)).collect();
        let file = OpenOptions::new().write(true).open(files.path("large")).expect("the file");
        std::os::unix::fs::FileExt::write_all_at(&file, &vec![0xee; LEN], 0).expect("overwritten");
        let new = files.get("/large", "").body;
        expect_same(&new, &vec![0xee; LEN], "what it is now");
        file.set_len(0).expect("cut");
        for client in &mut clients {
            expect_same(&client.bytes(LEN), expected, "what it was");
        }
        drop(files.stop());
    }
}
