//! mosquitto: large messages from a publisher to several subscribers.

use uncopy_testbed::Package;
use uncopy_testbed::servers::{Mosquitto, Service};

use super::environment::Stage;
use super::loaded_server::Serving;
use super::{By, Case, Effort, Point, Work};
use crate::clients::mqtt::Topic;
use crate::kit::{Result, Running, size};

const MOSQUITTO: Package = Mosquitto::PROGRAM;
/// Publishers, each with a topic, and the subscribers of each topic.
const TOPICS: u32 = 2;
const SUBSCRIBERS: usize = 4;

/// Messages of 64 KiB and 1 MiB.
pub const MESSAGES: Case = Case {
    name: "mosquitto",
    about: "mosquitto, messages of 64 KiB and 1 MiB at quality 0, 2 publishers with 4 subscribers each; an operation \
            is a message that all 4 have",
    paper: "not in the papers",
    needs: &[MOSQUITTO],
    points,
    remark: "",
    by: By::Slices,
};

fn points(effort: Effort) -> Vec<Point> {
    effort.points(&[1 << 20], &[64 << 10, 1 << 20], |size_bytes| {
        let title = format!("mosquitto {}, 4 subscribers", size(size_bytes as u64));
        Point::sized(title, size_bytes, Messages { size_bytes })
    })
}

#[derive(Debug)]
struct Messages {
    size_bytes: usize,
}

impl Work for Messages {
    fn start<'a>(&'a self, stage: &Stage<'_>) -> Result<Box<dyn Running + 'a>> {
        let mosquitto = Mosquitto::default();
        let (server, address) =
            stage.server(MOSQUITTO.program, |address, directory| mosquitto.arguments(address, directory))?;
        let open = move |number| Topic::open(address, self.size_bytes, SUBSCRIBERS, u64::from(number));
        Ok(Box::new(Serving::exchanging(stage, server, TOPICS, open)?))
    }
}
