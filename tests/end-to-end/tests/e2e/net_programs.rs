//! Unmodified programs over `uncopy net`, with the kernel's TCP as the peer. Longer: `make test-net`.

use std::time::Duration;

use uncopy_tests::artifacts::{bin_dir, packaged, plain_only, script};
use uncopy_tests::net_service::{KERNEL_V4, NetService, SERVICE_V4};
use uncopy_tests::random::test_size;
use uncopy_tests::running::Finished;
use uncopy_tests::scratch::HANG_LIMIT;
use uncopy_tests::{Mode, Program, Scratch};

/// An unused address in the service's network.
const SILENT: &str = "10.77.0.77";

/// Returns the duration of each load, in seconds.
fn seconds() -> u32 {
    u32::try_from((test_size() / 10).max(1)).expect("a number of seconds")
}

fn scenario(name: &str, programs: &[(&str, &str)]) {
    if plain_only() {
        return;
    }
    for (path, package) in programs {
        let _ = packaged(path, package);
    }
    let scratch = Scratch::new(&format!("net-{name}"));
    let service = NetService::start(&scratch, &[]);
    let control = service.control().to_str().expect("UTF-8");
    let uncopy = bin_dir().join("uncopy");
    let done = Program::new("/usr/bin/python3")
        .args([script("net_programs.py")])
        .args([name, &seconds().to_string(), &service.namespace(), SERVICE_V4, KERNEL_V4])
        .args([uncopy.as_os_str()])
        .args(["run", "--net", control, "--policy", "always", "--min-size", "4096", "--"])
        .mode(Mode::Plain)
        .start(&scratch, name)
        .finish_within(HANG_LIMIT + Duration::from_secs(60) * seconds());
    println!("{}", done.text());
    assert!(done.status.success(), "{}", done.text());
    service.wait_until_no_connections();
    service.stop();
}

#[test]
fn curl_uploads_and_downloads() {
    scenario("curl", &[("/usr/bin/curl", "curl"), ("/usr/sbin/nginx", "nginx")]);
}

#[test]
fn workers_of_another_user_serve_loads_and_proxy() {
    scenario(
        "web",
        &[("/usr/sbin/nginx", "nginx"), ("/usr/bin/wrk", "wrk"), ("/usr/bin/ab", "apache2-utils")],
    );
}

#[test]
fn redis_pipelines_publishes_and_replicates() {
    scenario(
        "redis",
        &[("/usr/bin/redis-server", "redis-server"), ("/usr/bin/redis-benchmark", "redis-tools")],
    );
}

#[test]
fn memcached_serves_threads_of_another_user() {
    scenario("memcached", &[("/usr/bin/memcached", "memcached")]);
}

/// Compares errors, signals, events and addresses, call by call.
#[test]
fn calls_behave_like_the_kernels() {
    if plain_only() {
        return;
    }
    let scratch = Scratch::new("net-trace");
    let service = NetService::start(&scratch, &[]);
    let trace = script("net_trace.py");
    let trace = trace.to_str().expect("UTF-8");
    let expected = service.kernel_program(&["python3", trace, KERNEL_V4]).start(&scratch, "kernel").finish();
    assert!(expected.status.success(), "{}", expected.text());
    for mode in [Mode::Always, Mode::Auto] {
        let program = service.program(Program::new("/usr/bin/python3").args([trace, SERVICE_V4]), mode);
        let done = program.start(&scratch, "service").finish();
        assert!(done.status.success(), "{}", done.text());
        let lines = |done: &Finished| String::from_utf8_lossy(&done.output).into_owned();
        assert_eq!(lines(&done), lines(&expected), "{mode:?}");
        service.wait_until_no_connections();
    }
    service.stop();
}

/// Differences from the kernel in [`each_operation_in_each_state_behaves_like_the_kernels`], as a
/// state and an operation ("" for any). All of them are documented in docs/reference.md.
const DIFFERENT: &[(&str, &str)] = &[
    // Shutdown of a bound socket changes nothing.
    ("bound and shut", ""),
    ("bound", "shut for reading"),
    ("bound", "shut"),
    ("listener shut for reading", "shut for reading"),
    ("listener shut for reading", "shut"),
    ("listener shut", "shut for reading"),
    ("listener shut", "shut"),
    ("listener shut with one waiting", "shut for reading"),
    ("listener shut with one waiting", "shut"),
    ("listener disconnected", "shut for reading"),
    ("listener disconnected", "shut"),
    // Disconnecting leaves no error and no port.
    ("disconnected", ""),
    ("", "disconnect"),
    // A connection in progress accepts data, and remains a connection when abandoned.
    ("connecting", "send"),
    ("connecting", "send quietly"),
    ("connecting", "send and error"),
    ("connecting", "error and recv"),
    ("connecting and shut", ""),
    // A port is permanent, and a second bind is refused.
    ("", "bind"),
    // Sending no bytes makes no request.
    ("", "send of nothing"),
    // Once shut down both ways, the connection is the peer's alone.
    ("shut", "state"),
    ("shut with data", "state"),
    ("shut for reading then data", "unread"),
    // Options without an effect read as their defaults.
    ("", "set TCP_SYNCNT 3"),
    ("", "set TCP_USER_TIMEOUT 1000"),
    ("", "set TCP_QUICKACK 0"),
    ("", "set TCP_DEFER_ACCEPT 7"),
    ("", "set TCP_NOTSENT_LOWAT 4096"),
    ("", "set TCP_LINGER2 5"),
    ("", "set IP_TOS 16"),
    ("", "set IP_TTL 9"),
    ("", "TCP_WINDOW_CLAMP"),
];

/// Differences that appear only after the service has noticed that the program shut the connection
/// down both ways, which may be after the answer.
const DIFFERENT_SOON: &[(&str, &str)] =
    &[("shut one by one", "state"), ("shut for reading then data", "shut")];

/// Parses lines of the form `STATE / OPERATION: RESULT`.
fn results(done: &Finished) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(&done.output).into_owned();
    let split = |line: &str| line.split_once(": ").map(|(what, result)| (what.to_owned(), result.to_owned()));
    text.lines().filter_map(split).collect()
}

#[test]
fn each_operation_in_each_state_behaves_like_the_kernels() {
    if plain_only() {
        return;
    }
    let scratch = Scratch::new("net-states");
    // A congestion control that every kernel allows in a network namespace by default.
    let service = NetService::start(&scratch, &["--congestion", "newreno"]);
    let states = script("net_states.py");
    let states = states.to_str().expect("UTF-8");
    let plain = "echo reno > /proc/sys/net/ipv4/tcp_congestion_control; exec python3 \"$@\"";
    let plain = service.kernel_program(&["sh", "-ec", plain, "sh", states, KERNEL_V4, SILENT]);
    let expected = plain.start(&scratch, "kernel").finish();
    assert!(expected.status.success(), "{}", expected.text());
    let expected = results(&expected);
    assert!(expected.len() > 2000, "{}", expected.len());
    for mode in [Mode::Always, Mode::Auto] {
        let program = Program::new("/usr/bin/python3").args([states, SERVICE_V4, SILENT]);
        let done = service.program(program, mode).start(&scratch, "service").finish();
        assert!(done.status.success(), "{}", done.text());
        let found = results(&done);
        let mut wrong = Vec::new();
        let mut is_used = vec![false; DIFFERENT.len()];
        for ((what, expected), (found_what, found)) in expected.iter().zip(&found) {
            assert_eq!(what, found_what);
            let (state, operation) = what.split_once(" / ").expect("a state and an operation");
            if expected == found || DIFFERENT_SOON.contains(&(state, operation)) {
                continue;
            }
            let fits = |(of_state, of_operation): &(&str, &str)| {
                (of_state.is_empty() || *of_state == state)
                    && (of_operation.is_empty() || *of_operation == operation)
            };
            match DIFFERENT.iter().position(fits) {
                Some(at) => is_used[at] = true,
                None => wrong.push(format!("{what}: {expected}, but {found}")),
            }
        }
        assert_eq!(expected.len(), found.len(), "{mode:?}");
        assert!(wrong.is_empty(), "{mode:?}: {} differ:\n{}", wrong.len(), wrong.join("\n"));
        let unused: Vec<_> = DIFFERENT.iter().zip(is_used).filter(|(_, is_used)| !is_used).collect();
        assert!(unused.is_empty(), "{mode:?}: as the kernel's by now: {unused:?}");
        service.wait_until_no_connections();
    }
    service.stop();
}

/// Children of root with another user or root directory, and the programs that they execute.
#[test]
fn program_that_changes_its_user_or_root_keeps_the_service() {
    if plain_only() {
        return;
    }
    let scratch = Scratch::new("net-users");
    let service = NetService::start(&scratch, &[]);
    let echo = r#"
import socket, threading
def serve(one):
    while part := one.recv(1 << 20):
        one.sendall(part)
listener = socket.create_server((KERNEL, 7400))
print("ready", flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"#;
    let echo = echo.replace("KERNEL", &format!("{KERNEL_V4:?}"));
    let kernel = service.kernel_program(&["python3", "-c", &echo]).start(&scratch, "kernel");
    let _ = kernel.wait_for_line("ready");
    let users = std::fs::read_to_string(script("net_users.py")).expect("a script");
    for mode in [Mode::Always, Mode::Auto, Mode::Lanes] {
        let program = Program::new("/usr/bin/python3").args(["-c", &users, SERVICE_V4, KERNEL_V4, "7400"]);
        let done = service.program(program, mode).start(&scratch, "users").finish();
        assert!(done.status.success() && done.text().contains("well"), "{}", done.text());
        service.wait_until_no_connections();
    }
    drop(kernel.stop(libc::SIGKILL));
    service.stop();
}
