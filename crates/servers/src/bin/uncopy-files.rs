//! The command `uncopy-files`.

use std::io::Write;
use std::process::ExitCode;

use uncopy_servers::files::answer::Site;
use uncopy_servers::files::arguments::{self, Arguments};
use uncopy_servers::files::cache::Cache;
use uncopy_servers::files::connection::Timeouts;
use uncopy_servers::files::memory;
use uncopy_servers::files::root::Root;
use uncopy_servers::files::server::{Server, Settings};
use uncopy_servers::files::ways::Way;

/// Exit status of a wrong command line.
const STATUS_USAGE: u8 = 2;

fn main() -> ExitCode {
    let arguments = match arguments::parse(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() => {
            let message = error.to_string();
            eprint!("uncopy-files: {}", message.strip_prefix("error: ").unwrap_or(&message));
            return ExitCode::from(STATUS_USAGE);
        }
        Err(help) => {
            let _ = help.print();
            return ExitCode::SUCCESS;
        }
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("uncopy-files: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), String> {
    if arguments.man {
        let page = arguments::manual().map_err(|error| error.to_string())?;
        // A reader that has seen enough is no error.
        let _ = std::io::stdout().write_all(&page);
        return Ok(());
    }
    let directory = &arguments.directory;
    let root = Root::open(directory, arguments.index.clone(), arguments.hidden)
        .map_err(|error| format!("cannot serve {}: {error}", directory.display()))?;
    if arguments.way == Way::Twin {
        memory::begin(arguments.reference_from);
    }
    let site = Site { root, way: arguments.way, cache: Cache::new(arguments.cache << 20) };
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let settings = Settings {
        listen: arguments.listen,
        threads: arguments.threads.unwrap_or(processors),
        connections: arguments.connections.unwrap_or(arguments::CONNECTIONS),
        timeouts: Timeouts {
            head_ms: arguments.head_timeout * 1000,
            idle_ms: arguments.idle_timeout * 1000,
            send_ms: arguments.send_timeout * 1000,
        },
        grace_ms: arguments.grace * 1000,
        buffer_bytes: arguments.buffer << 10,
    };
    let server = Server::listen(site, settings)
        .map_err(|error| format!("cannot listen on {}: {error}", arguments.listen))?;
    if let Some(asked) = arguments.connections.filter(|asked| server.connections() < *asked) {
        let most = server.connections();
        eprintln!(
            "uncopy-files: at most {most} connections, not {asked}: raise the limit of descriptors (ulimit -n)"
        );
    }
    let mut stdout = std::io::stdout();
    // Nobody need read this.
    let _ = writeln!(stdout, "uncopy-files: listening on http://{}/", server.address)
        .and_then(|()| stdout.flush());
    let (tally, held_bytes) = server.run().map_err(|error| error.to_string())?;
    if arguments.stats {
        eprintln!(
            "{{\"connections\": {}, \"turned_away\": {}, \"answers\": {}, \"sent_bytes\": {}, \"timed_out\": {}, \
             \"cached_bytes\": {held_bytes}}}",
            tally.connections, tally.turned_away, tally.answers, tally.sent_bytes, tally.timed_out
        );
    }
    Ok(())
}
