//! mosquitto: large messages from a publisher to several subscribers.

use uncopy_testbed::Package;
use uncopy_testbed::servers::{Mosquitto, Service};

use super::environment::Environment;
use super::loaded_server::LoadedServer;
use super::{AppServer, Case, Effort, Point, Scheme};
use crate::clients::mqtt::Topic;
use crate::kit::{Result, RunningServer, format_size};

const MOSQUITTO: Package = Mosquitto::PROGRAM;
/// Publishers, each with a topic, and the subscribers of each topic.
const TOPICS: u32 = 2;
const SUBSCRIBERS: usize = 4;

/// Messages of 64 KiB and 1 MiB.
pub const MESSAGES: Case = Case {
    name: "mosquitto",
    description: "mosquitto, messages of 64 KiB and 1 MiB at QoS 0, 2 publishers with 4 subscribers each; an \
                  operation is a message that all 4 have received",
    paper: "not in the papers",
    packages: &[MOSQUITTO],
    points,
    remark: "",
    scheme: Scheme::Slices,
};

fn points(effort: Effort) -> Vec<Point> {
    effort.points(&[1 << 20], &[64 << 10, 1 << 20], |size_bytes| {
        let title = format!("mosquitto {}, 4 subscribers", format_size(size_bytes as u64));
        Point::sized(title, size_bytes, Messages { size_bytes })
    })
}

#[derive(Debug)]
struct Messages {
    size_bytes: usize,
}

impl AppServer for Messages {
    fn start<'a>(&'a self, environment: &Environment<'_>) -> Result<Box<dyn RunningServer + 'a>> {
        let mosquitto = Mosquitto::default();
        let (server, address) = environment
            .start_server(MOSQUITTO.program, |address, directory| mosquitto.arguments(address, directory))?;
        let open = move |number| Topic::open(address, self.size_bytes, SUBSCRIBERS, u64::from(number));
        Ok(Box::new(LoadedServer::with_clients(environment, server, TOPICS, open)?))
    }
}
