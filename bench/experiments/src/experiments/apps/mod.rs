//! `uncopy-bench apps`: packaged applications under load, plain and under uncopy.

use std::path::PathBuf;

use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::apps::{CASES, Case, Effort};
use crate::kit::{
    CommonOptions, ComparisonOptions, Experiment, Outcome, Progress, ReportEntry, Result, claim, entry,
    prepare_experiment, print, run_with_noise_reduction, size_parser,
};

pub mod measure;

fn case_parser() -> PossibleValuesParser {
    CASES.iter().map(|case| case.name).collect::<Vec<_>>().into()
}

/// Packaged servers under load: nginx, Redis, PostgreSQL and others (zIO, section 5.3; ZCopy, section 4)
#[derive(Debug, Args)]
pub struct Apps {
    /// Cases to measure [default: all]
    #[arg(value_name = "NAME", value_parser = case_parser())]
    pub names: Vec<String>,
    /// List the cases, the papers' measurements, and the packages that are missing
    #[arg(long)]
    pub list: bool,
    #[command(flatten)]
    pub comparison_options: ComparisonOptions,
    /// Instead of measuring, load each case for --seconds under uncopy profile, which writes DIR/NAME.json
    #[arg(long, value_name = "DIR")]
    pub profile: Option<PathBuf>,
    /// With --profile: minimum size of a recorded call [default: as uncopy profile]
    #[arg(long, value_name = "SIZE", requires = "profile", value_parser = size_parser())]
    pub min_size: Option<usize>,
    #[command(flatten)]
    pub common: CommonOptions,
}

impl Experiment for Apps {
    const ENTRIES: &'static [ReportEntry] = &[
        entry(
            "apps-web",
            "nginx and HAProxy",
            &[claim(
                "zIO, §5.3.1",
                "A web server made from Icecast, see Figure 14; nginx and HAProxy are not in the papers.",
            )],
            "apps nginx-static nginx-proxied haproxy",
            "apps --quick --sides uncopy nginx-static nginx-proxied haproxy",
        )
        .taking(20),
        entry(
            "apps-icecast",
            "Icecast: a file, and a live stream",
            &[
                claim(
                    "zIO, Table 3 (§5.3)",
                    "A file of 1.1 MB: 0.89 GB/s, with zIO 1.08 GB/s (1.25 times), on a kernel-bypass stack.",
                ),
                claim("zIO, Table 3 (§5.3)", "A relayed stream: 812 listeners, with zIO 944 (1.16 times)."),
            ],
            "apps --seconds=60 icecast-file icecast-relay",
            "apps --quick --sides uncopy icecast-file icecast-relay",
        )
        .taking(25),
        entry(
            "apps-varnish",
            "Varnish",
            &[claim(
                "ZCopy, Figure 10 (§4.2)",
                "Slightly slower at 1 KiB; 1.007 to 1.079 times from 2 to 8 KiB, with ZCopy's allocator.",
            )],
            "apps varnish",
            "apps --quick --sides uncopy varnish",
        )
        .taking(15),
        entry(
            "apps-memcached",
            "memcached as packaged",
            &[claim(
                "ZCopy, Figures 6 and 8 (§4.1)",
                "With ZCopy's allocator: 1.408 times over TCP at 512 bytes, 1.411 times over UDP at 768 \
                 bytes. Here memcached is unmodified, under uncopy run.",
            )],
            "apps memcached-tcp memcached-udp memcached",
            "apps --quick --sides uncopy memcached-tcp memcached-udp memcached",
        )
        .taking(30),
        entry(
            "apps-stores",
            "Databases with large values",
            &[claim(
                "zIO, §5.4",
                "MongoDB, 1 MB values: 191 requests/s with zIO, 194 without. Without MongoDB's checksum: 222 \
                 with zIO, 209 without.",
            )],
            "apps postgresql-copy postgresql-object mariadb-blob",
            "apps --quick --sides uncopy postgresql-copy mariadb-blob",
        )
        .taking(25),
        entry(
            "apps-others",
            "mosquitto and Python",
            &[claim(
                "not in the papers",
                "A broker, a file server and a proxy that copy the data they forward.",
            )],
            "apps mosquitto python-http python-proxy",
            "apps --quick --sides uncopy mosquitto python-http python-proxy",
        ),
        entry(
            "apps-more",
            "Apache, lighttpd, Squid, socat, stunnel",
            &[claim("not in the papers", "Servers and relays that must not become slower.")],
            "apps apache-static apache-proxied lighttpd squid socat socat-short stunnel",
            "apps --quick --sides uncopy apache-static lighttpd squid socat stunnel",
        )
        .taking(30),
    ];
    const REPORT_POSITION: u8 = 160;

    fn run(&self) -> Result<Outcome> {
        let cases = self.cases();
        if self.list {
            return print(&measure::list_cases(&cases)).map(|()| Outcome::Status(0));
        }
        if let Some(directory) = &self.profile {
            let launcher = prepare_experiment()?.with_min_profiled_bytes(self.min_size);
            let mut progress = Progress::new();
            let lines = measure::profile(
                &launcher,
                &cases,
                directory,
                self.comparison_options.slicing.seconds,
                &mut progress,
            )?;
            drop(progress);
            return print(&lines).map(|()| Outcome::Status(0));
        }
        run_with_noise_reduction(&self.common, |launcher, progress| {
            Ok(measure::measure(launcher, &cases, self.effort(), &self.comparison_options.slices(), progress))
        })
    }
}

impl Apps {
    /// Returns the cases named on the command line, in the order of the registry.
    fn cases(&self) -> Vec<&'static Case> {
        let named = |case: &&Case| self.names.is_empty() || self.names.iter().any(|name| name == case.name);
        CASES.iter().filter(named).collect()
    }

    /// Returns how many points of each case to measure.
    fn effort(&self) -> Effort {
        if self.common.quick { Effort::Quick } else { Effort::Full }
    }
}
