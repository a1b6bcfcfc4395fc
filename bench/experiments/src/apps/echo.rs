//! The echo server of zIO section 5.1 as a case: `uncopy-bench echo copies`, accessible to the profiler.

use super::environment::Environment;
use super::{AppServer, Case, Effort, Point, Scheme};
use crate::kit::network::server_address;
use crate::kit::{Result, RunningServer, TemporaryDirectory, format_size};
use crate::servers::echo::command;
use crate::servers::echo::loaded_echo::LoadedEcho;
use crate::servers::echo::server;

const COPIES: usize = 5;

/// Messages that are copied five times.
pub const ECHO: Case = Case {
    name: "echo",
    description: "the echo server of uncopy-bench, messages of 64 KiB and 512 KiB, 5 copies each, 1 connection",
    paper: "zIO section 5.1, figures 5 to 7: echo server with up to 12 copies",
    // The echo server is `uncopy-bench` itself.
    packages: &[],
    points,
    remark: "uncopy-bench echo measures it over ranges of sizes and copies",
    scheme: Scheme::Slices,
};

fn points(effort: Effort) -> Vec<Point> {
    effort.points(&[512 << 10], &[64 << 10, 512 << 10], |size_bytes| {
        let work = server::EchoWork { size_bytes, copies: COPIES, ..server::EchoWork::default() };
        let title = format!("echo {}, {COPIES} copies", format_size(size_bytes as u64));
        // The default policy finds that 64 KiB do not always pay.
        Point { elision_expected: size_bytes > 64 << 10, ..Point::sized(title, size_bytes, Echo { work }) }
    })
}

#[derive(Debug)]
struct Echo {
    work: server::EchoWork,
}

impl AppServer for Echo {
    fn start<'a>(&'a self, environment: &Environment<'_>) -> Result<Box<dyn RunningServer + 'a>> {
        let command = environment.bench_command(&command::arguments(server_address(), &self.work, 1));
        let server = environment.start(command, "the echo server", TemporaryDirectory::make()?)?;
        Ok(Box::new(LoadedEcho::new(
            server,
            server_address(),
            self.work,
            1,
            environment.client_processors(),
        )?))
    }
}
