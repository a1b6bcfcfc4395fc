//! Figures of one run or slice under one side, each of which may be missing.

use crate::kit::counts::Counts;

/// Figures of one run under one side; `None` where not measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Operations (exchanges, SETs, GETs) per second.
    pub operations_per_s: Option<f64>,
    /// Median latency, µs.
    pub latency_p50_us: Option<f64>,
    /// 99th percentile of the latency, µs.
    pub latency_p99_us: Option<f64>,
    /// 99.9th percentile of the latency, µs.
    pub latency_p999_us: Option<f64>,
    /// Server's processor time per operation, µs.
    pub cpu_us: Option<f64>,
    /// Part of `cpu_us` used by processes beside the server, µs per operation.
    pub service_cpu_us: Option<f64>,
    /// Part of `cpu_us` used by the log's keeper, µs per operation.
    pub keeper_cpu_us: Option<f64>,
    /// Clients' processor time per operation, µs; `None` where the clients are not threads of this program.
    pub client_cpu_us: Option<f64>,
    /// Time for the server to touch a page, ns.
    pub touch_ns: Option<f64>,
    /// Transmission rate, Mbit/s.
    pub megabits_per_s: Option<f64>,
    /// Part of all processors' time that the work took from others, interrupts included, percent.
    pub load_percent: Option<f64>,
    /// Part of all processors' time that is the server's by its own account, percent.
    pub server_percent: Option<f64>,
    /// Part of all processors' time that is the client's by its own account, percent.
    pub client_percent: Option<f64>,
    /// Part of all processors' time used by anything but the soakers, percent: the work's own tasks, kernel threads,
    /// other programs. Interrupts are not included.
    pub others_percent: Option<f64>,
    /// Bytes whose copy uncopy elided in the server.
    pub elided_bytes: Option<f64>,
    /// Elapsed time of the whole run, s.
    pub elapsed_s: Option<f64>,
    /// Server's processor time in user mode, s.
    pub user_s: Option<f64>,
    /// Server's processor time in the kernel, s.
    pub system_s: Option<f64>,
    /// Server's resident memory after the work, bytes.
    pub resident_bytes: Option<f64>,
    /// Bytes compared with the expected ones, all of them right; `None` if nothing was checked.
    pub verified_bytes: Option<u64>,
    /// Measured values that the figures of a slice are computed from.
    pub raw: Option<RawSlice>,
    /// Event counts of the server, per operation.
    pub counts: Counts,
    /// Savings that the process under uncopy measured by itself, as reported by `uncopy stats`.
    pub trials: Option<serde_json::Value>,
    /// Notes for the reader.
    pub notes: Vec<String>,
    /// A failure that leaves the figures right, such as a crash at the server's end.
    pub defect: Option<String>,
}

/// Measured values of one slice of one side's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawSlice {
    /// Processor time of all the server's processes, ns.
    pub cpu_ns: u64,
    /// Number of operations completed.
    pub operations: u64,
    /// Time of the slice, ns.
    pub elapsed_ns: u64,
}

impl From<RawSlice> for Sample {
    #[expect(clippy::cast_precision_loss, reason = "figures of a few digits")]
    fn from(raw: RawSlice) -> Self {
        let operations = raw.operations.max(1) as f64;
        Self {
            operations_per_s: Some(operations * 1e9 / raw.elapsed_ns.max(1) as f64),
            cpu_us: Some(raw.cpu_ns as f64 / 1e3 / operations),
            raw: Some(raw),
            ..Self::default()
        }
    }
}

impl Sample {
    /// Returns the processor time per operation without that of the service and of the log's keeper, µs.
    #[must_use]
    pub fn own_cpu_us(&self) -> Option<f64> {
        Some(self.cpu_us? - self.service_cpu_us.unwrap_or(0.0) - self.keeper_cpu_us.unwrap_or(0.0))
    }

    /// Returns the load without the client's own processor time, percent.
    #[must_use]
    pub fn sending_percent(&self) -> Option<f64> {
        Some(self.load_percent? - self.client_percent?)
    }

    /// Returns the load that is time of neither server nor client, percent: kernel threads and other programs.
    #[must_use]
    pub fn background_percent(&self) -> Option<f64> {
        Some(self.others_percent? - self.client_percent? - self.server_percent?)
    }

    /// Returns the load that is no task's time, percent: interrupts, and the cost of cache misses to the soakers.
    #[must_use]
    pub fn interrupts_percent(&self) -> Option<f64> {
        Some(self.load_percent? - self.others_percent?)
    }
}

/// Accessor of one figure of a sample.
pub type Metric = fn(&Sample) -> Option<f64>;

/// Figures in JSON documents, by key.
pub const METRICS: [(&str, Metric); 31] = [
    ("operations_per_s", |sample| sample.operations_per_s),
    ("latency_p50_us", |sample| sample.latency_p50_us),
    ("latency_p99_us", |sample| sample.latency_p99_us),
    ("latency_p999_us", |sample| sample.latency_p999_us),
    ("server_cpu_us_per_operation", |sample| sample.cpu_us),
    ("service_cpu_us_per_operation", |sample| sample.service_cpu_us),
    ("keeper_cpu_us_per_operation", |sample| sample.keeper_cpu_us),
    ("client_cpu_us_per_operation", |sample| sample.client_cpu_us),
    ("faults_per_operation", |sample| sample.counts.served_faults),
    ("server_touch_ns_per_page", |sample| sample.touch_ns),
    ("server_resident_bytes", |sample| sample.resident_bytes),
    ("megabits_per_s", |sample| sample.megabits_per_s),
    ("machine_load_percent", |sample| sample.load_percent),
    ("sending_load_percent", Sample::sending_percent),
    ("server_cpu_percent", |sample| sample.server_percent),
    ("client_cpu_percent", |sample| sample.client_percent),
    ("other_tasks_percent", Sample::background_percent),
    ("interrupts_percent", Sample::interrupts_percent),
    ("others_percent", |sample| sample.others_percent),
    ("copied_bytes_per_operation", |sample| sample.counts.copied_bytes),
    ("elided_bytes_per_operation", |sample| sample.counts.elided_bytes),
    ("lent_bytes_per_operation", |sample| sample.counts.lent_bytes),
    ("minor_faults_per_operation", |sample| sample.counts.minor_faults),
    ("io_calls_per_operation", |sample| sample.counts.io_calls),
    ("written_bytes_per_operation", |sample| sample.counts.written_bytes),
    ("device_bytes_per_operation", |sample| sample.counts.device_bytes),
    ("context_switches_per_operation", |sample| sample.counts.context_switches),
    ("server_elided_bytes", |sample| sample.elided_bytes),
    ("elapsed_s", |sample| sample.elapsed_s),
    ("server_user_s", |sample| sample.user_s),
    ("server_system_s", |sample| sample.system_s),
];
