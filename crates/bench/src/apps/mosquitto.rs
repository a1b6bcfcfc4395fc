//! mosquitto: large messages from a publisher to several subscribers.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;

use super::exchanging::Exchanging;
use super::programs::Need;
use super::stage::Stage;
use super::{By, Case, Effort, Point, Work};
use crate::clients::mqtt::Topic;
use crate::kit::{Result, Running, While, size};

/// The broker. It tells its version with its usage.
const MOSQUITTO: Need = Need::new("mosquitto", "mosquitto", &["-h"]);
/// Publishers, each with a topic of its own, and subscribers of each.
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

fn configure(address: SocketAddr, directory: &Path) -> Result<Vec<OsString>> {
    let (ip, port) = (address.ip(), address.port());
    let configuration = format!(
        "listener {port} {ip}\nallow_anonymous true\nuser root\npersistence false\nlog_dest stderr\n\
         log_type error\nlog_type warning\nmessage_size_limit 0\nset_tcp_nodelay true\n"
    );
    let file = directory.join("mosquitto.conf");
    std::fs::write(&file, configuration).doing("writing mosquitto.conf")?;
    Ok(vec!["-c".into(), file.into()])
}

impl Work for Messages {
    fn start<'a>(&'a self, stage: &Stage<'_>) -> Result<Box<dyn Running + 'a>> {
        let (server, address) = stage.server(MOSQUITTO.program, configure)?;
        let open = move |number| Topic::open(address, self.size_bytes, SUBSCRIBERS, u64::from(number));
        Ok(Box::new(Exchanging::new(stage, server, TOPICS, open)?))
    }
}
