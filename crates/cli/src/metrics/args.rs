//! The command line of `uncopy metrics`.

use clap::{Arg, ArgGroup, Command, ValueHint, value_parser};
use std::ffi::OsString;

pub const LISTEN: &str = "listen";
pub const TEXTFILE: &str = "textfile";

const NOTES: &str = "\
Examples:
  uncopy metrics --listen 9745
      Serve http://127.0.0.1:9745/metrics, for a Prometheus on this host.
  sudo uncopy metrics --listen 10.0.0.1:9745
      The same for others, and of all users' processes.
  sudo uncopy metrics --textfile /var/lib/prometheus/node-exporter/uncopy.prom
      Once, for the textfile collector of the node exporter.

The package has uncopy-metrics.service, which serves 127.0.0.1:9745, and uncopy-textfile.timer, which writes that
file every 15 seconds; neither runs before it is switched on:
  systemctl enable --now uncopy-metrics.service
/usr/share/uncopy/grafana-dashboard.json is a dashboard for Grafana.

Every counter has the labels pid and command; other users' processes are root's to see. Exit status: 0, or 1 if
the address or the file cannot be used, or 2 if the command line is wrong. A signal ends a server.";

/// Returns the definition of `uncopy metrics`.
pub fn command() -> Command {
    Command::new("metrics")
        .about("Give the counters to Prometheus: by HTTP, or in a file")
        .arg(
            Arg::new(LISTEN)
                .long(LISTEN)
                .value_name("[ADDRESS:]PORT")
                .help("Answer HTTP there; a port alone is one of 127.0.0.1")
                .allow_hyphen_values(true)
                .value_parser(value_parser!(OsString)),
        )
        .arg(
            Arg::new(TEXTFILE)
                .long(TEXTFILE)
                .value_name("FILE")
                .help("Write FILE once, in one step")
                .value_parser(value_parser!(OsString))
                .value_hint(ValueHint::FilePath),
        )
        .group(ArgGroup::new("where").args([LISTEN, TEXTFILE]).required(true))
        .after_help(NOTES)
}
