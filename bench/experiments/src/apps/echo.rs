//! The echo server of zIO section 5.1 as a case: `uncopy-bench echo copies`, accessible to the profiler.

use super::environment::Stage;
use super::{By, Case, Effort, Point, Work};
use crate::kit::network::server_address;
use crate::kit::{Result, Running, TemporaryDirectory, size};
use crate::servers::echo::command;
use crate::servers::echo::loaded_echo::Echoing;
use crate::servers::echo::server;

const COPIES: usize = 5;

/// Messages that are copied five times.
pub const ECHO: Case = Case {
    name: "echo",
    about: "the echo server of uncopy-bench, messages of 64 KiB and 512 KiB, 5 copies each, 1 connection",
    paper: "zIO section 5.1, figures 5 to 7: echo server with up to 12 copies",
    // The echo server is `uncopy-bench` itself.
    needs: &[],
    points,
    remark: "uncopy-bench echo measures it over ranges",
    by: By::Slices,
};

fn points(effort: Effort) -> Vec<Point> {
    effort.points(&[512 << 10], &[64 << 10, 512 << 10], |size_bytes| {
        let work = server::Work { size_bytes, copies: COPIES, ..server::Work::default() };
        let title = format!("echo {}, {COPIES} copies", size(size_bytes as u64));
        // The default policy finds that 64 KiB do not always pay.
        Point { elision_expected: size_bytes > 64 << 10, ..Point::sized(title, size_bytes, Echo { work }) }
    })
}

#[derive(Debug)]
struct Echo {
    work: server::Work,
}

impl Work for Echo {
    fn start<'a>(&'a self, stage: &Stage<'_>) -> Result<Box<dyn Running + 'a>> {
        let command = stage.bench(&command::arguments(server_address(), &self.work, 1));
        let server = stage.start(command, "the echo server", TemporaryDirectory::make()?)?;
        Ok(Box::new(Echoing::new(server, server_address(), self.work, 1, stage.client_processors())?))
    }
}
