//! Messages of random sizes echoed over every transport, by every call, under uncopy.

use uncopy_core::stats::Counter;
use uncopy_tests::random::{rounds, seed};
use uncopy_tests::{Mode, Program, Scratch};

const ECHO: &str = env!("CARGO_BIN_EXE_echo");
const SERVER_WORKED: &[Counter] = &[Counter::ElidedBytes, Counter::InputBytes, Counter::OutputBytes];
/// A client stores to what it sends and loads from what it receives, so it need not gather.
const CLIENT_WORKED: &[Counter] = &[Counter::ElidedBytes, Counter::InputBytes];

/// Runs server and client as separate programs.
fn run_echo(transport: &str, server_mode: Mode, client_mode: Mode, messages: usize) {
    let scratch = Scratch::new(&format!("echo-{transport}"));
    let directory = scratch.path().to_str().expect("UTF-8");
    let seed = seed(1000);
    let messages = rounds(messages).to_string();
    let server = Program::new(ECHO)
        .args(["server", transport, directory, &(seed + 7).to_string()])
        .mode(server_mode)
        .start(&scratch, "server");
    let address = server.wait_for_line("ready ");
    let client = Program::new(ECHO)
        .args(["client", transport, directory, &seed.to_string(), &address, &messages])
        .mode(client_mode)
        .start(&scratch, "client");
    let client = client.finish();
    assert!(client.status.success(), "seed {seed}, client {}\nserver's {}", client.text(), server.errors());
    let _ = client.expect_success().expect_counters(CLIENT_WORKED);
    let _ = server.finish().expect_success().expect_counters(SERVER_WORKED);
}

/// Runs both ends as threads of one program.
fn run_echo_pair(transport: &str, mode: Mode, messages: usize) {
    let scratch = Scratch::new(&format!("pair-{transport}"));
    let seed = seed(2000);
    let program =
        Program::new(ECHO).args(["pair", transport, ".", &seed.to_string(), &rounds(messages).to_string()]);
    let done = program.mode(mode).run(&scratch, "pair").expect_success();
    let _ = done.expect_counters(SERVER_WORKED);
}

#[test]
fn tcp_server_eliding_everything_with_a_plain_client() {
    run_echo("tcp", Mode::Always, Mode::Plain, 60);
}

#[test]
fn tcp_server_and_client_eliding_everything() {
    run_echo("tcp", Mode::Always, Mode::Always, 60);
}

#[test]
fn tcp_server_and_client_with_the_default_policy() {
    run_echo("tcp", Mode::Auto, Mode::Auto, 60);
}

#[test]
fn tcp_with_small_socket_buffers() {
    run_echo("tcp-small", Mode::Always, Mode::Always, 30);
}

#[test]
fn unix_stream() {
    run_echo("unix", Mode::Always, Mode::Always, 60);
    run_echo("unix", Mode::Auto, Mode::Plain, 30);
}

#[test]
fn named_pipes() {
    run_echo("fifo", Mode::Always, Mode::Always, 60);
    run_echo("fifo", Mode::Auto, Mode::Auto, 30);
}

#[test]
fn udp_datagrams() {
    run_echo("udp", Mode::Always, Mode::Always, 150);
    run_echo("udp", Mode::Auto, Mode::Auto, 150);
}

#[test]
fn unix_datagrams() {
    run_echo("datagram", Mode::Always, Mode::Always, 150);
    run_echo("datagram", Mode::Auto, Mode::Auto, 150);
}

#[test]
fn stream_socket_pair_between_threads() {
    run_echo_pair("stream", Mode::Always, 60);
    run_echo_pair("stream", Mode::Auto, 60);
}

#[test]
fn pipes_between_threads() {
    run_echo_pair("pipe", Mode::Always, 60);
    run_echo_pair("pipe", Mode::Auto, 60);
}

#[test]
fn sequenced_packets_between_threads() {
    run_echo_pair("seqpacket", Mode::Always, 150);
    run_echo_pair("seqpacket", Mode::Auto, 150);
}

#[test]
fn datagram_socket_pair_between_threads() {
    run_echo_pair("datagram", Mode::Always, 150);
}

#[test]
fn library_loaded_with_eliding_off() {
    run_echo_pair("stream", Mode::Off, 20);
    run_echo_pair("stream", Mode::Never, 20);
}
