//! The packaged mosquitto: messages of up to 12 MiB to several subscribers, at every quality of
//! service. Every byte that a subscriber gets is compared.

use uncopy_core::stats::Counter;
use uncopy_testbed::servers::Mosquitto;
use uncopy_tests::artifacts::packaged;
use uncopy_tests::http::expect_same;
use uncopy_tests::packaged_server::PackagedServer;
use uncopy_tests::random::{bytes, seed};
use uncopy_tests::running::Running;
use uncopy_tests::scratch::wait_until;
use uncopy_tests::{Mode, Program, Scratch};

const SIZES: [usize; 6] = [1, 5000, 65_537, 300_000, (2 << 20) + 17, (12 << 20) + 3];
const SUBSCRIBERS: usize = 3;

fn messages(mode: Mode) {
    let scratch = Scratch::new("mosquitto");
    let seed = seed(87);
    let mosquitto = Mosquitto { lines: "log_type subscribe\nmax_queued_messages 100\n" };
    let server = PackagedServer::start(&mosquitto, mode, &scratch, "mosquitto");
    let port = server.port;
    let contents: Vec<Vec<u8>> =
        SIZES.iter().enumerate().map(|(number, size)| bytes(seed + number as u64, *size)).collect();
    let all_messages = contents.concat();
    for quality in ["0", "1", "2"] {
        let topic = format!("large/{quality}");
        let subscribers: Vec<Running> = (0..SUBSCRIBERS)
            .map(|number| {
                Program::new(packaged("/usr/bin/mosquitto_sub", "mosquitto-clients"))
                    .args(["-h", "127.0.0.1", "-p", &port.to_string(), "-t", &topic, "-q", quality])
                    .args(["-N", "-C", &SIZES.len().to_string()])
                    .mode(mode)
                    .start(&scratch, &format!("subscriber{quality}{number}"))
            })
            .collect();
        wait_until(&format!("subscriptions to {topic}"), || {
            (server.running.errors().matches(&format!(" {quality} {topic}\n")).count() == SUBSCRIBERS)
                .then_some(())
        });
        for (size, content) in SIZES.iter().zip(&contents) {
            let file = scratch.write(&format!("message{size}"), content);
            let done = Program::new(packaged("/usr/bin/mosquitto_pub", "mosquitto-clients"))
                .args(["-h", "127.0.0.1", "-p", &port.to_string(), "-t", &topic])
                .args(["-q", quality, "-f", file.to_str().expect("UTF-8")])
                .mode(mode)
                .run(&scratch, "publisher")
                .expect_success();
            drop(done);
        }
        for subscriber in subscribers {
            let done = subscriber.finish().expect_success();
            expect_same(&done.output, &all_messages, &format!("quality {quality}"));
        }
    }
    let _ = server.stop(&[Counter::InputBytes]);
}

#[test]
fn large_messages_with_everything_elided() {
    messages(Mode::Always);
}

#[test]
fn large_messages_with_the_default_policy() {
    messages(Mode::Sliced);
}

#[test]
fn large_messages_by_lanes() {
    messages(Mode::Lanes);
}
