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
      Serve the processes of all users, also to other hosts.
  sudo uncopy metrics --textfile /var/lib/prometheus/node-exporter/uncopy.prom
      Write the counters once, for the textfile collector of the node exporter.

The package has two units, which are disabled at first: uncopy-metrics.service serves 127.0.0.1:9745, and \
uncopy-textfile.timer writes that file every 15 seconds. To enable one, type:
  systemctl enable --now uncopy-metrics.service
/usr/share/uncopy/grafana-dashboard.json is a dashboard for Grafana.

Every counter has the labels pid and command. Only root sees the processes of other users. A signal ends the \
server. Exit status: 0; 1 if the address or the file cannot be used; 2 for a wrong command line.";

/// Returns the definition of `uncopy metrics`.
pub fn command() -> Command {
    Command::new("metrics")
        .about("Export the counters to Prometheus, over HTTP or in a file")
        .arg(
            Arg::new(LISTEN)
                .long(LISTEN)
                .value_name("[ADDRESS:]PORT")
                .help("Serve HTTP at this address; a port alone is on 127.0.0.1")
                .allow_hyphen_values(true)
                .value_parser(value_parser!(OsString)),
        )
        .arg(
            Arg::new(TEXTFILE)
                .long(TEXTFILE)
                .value_name("FILE")
                .help("Write FILE once, atomically")
                .value_parser(value_parser!(OsString))
                .value_hint(ValueHint::FilePath),
        )
        .group(ArgGroup::new("where").args([LISTEN, TEXTFILE]).required(true))
        .after_help(NOTES)
}
