//! Requests of commands to the handler thread, through the pipe beside the counters.

use crate::state::counters;
use crate::state::phase::{Phase, STATE};
use crate::state::policy::POLICY;
use uncopy_core::recording::request::{MAX_MESSAGE_BYTES, Request};
use uncopy_record::session;
use uncopy_sys::control::Control;

/// Bytes of messages that are not complete yet.
pub(crate) struct Inbox {
    bytes: Box<[u8; 2 * MAX_MESSAGE_BYTES]>,
    len_bytes: usize,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self { bytes: Box::new([0; 2 * MAX_MESSAGE_BYTES]), len_bytes: 0 }
    }

    /// Reads and executes requests; returns whether a release was requested.
    pub(crate) fn take(&mut self, control: Control) -> bool {
        let mut releases = false;
        loop {
            let got = control.read(&mut self.bytes[self.len_bytes..]);
            if got == 0 {
                return releases;
            }
            self.len_bytes += got;
            let mut rest = &self.bytes[..self.len_bytes];
            loop {
                let (request, behind) = Request::decode(rest);
                rest = behind;
                match request {
                    None => break,
                    Some(Request::Release) => releases = true,
                    Some(Request::End) => end(),
                    Some(Request::Record { directory, min_size_bytes }) => begin(directory, min_size_bytes),
                }
            }
            // An incomplete message is shorter than the longest one, so there is room for more.
            let left = rest.len();
            self.bytes.copy_within(self.len_bytes - left..self.len_bytes, 0);
            self.len_bytes = left;
        }
    }
}

/// Begins a recording. Existing views stay and are served; none are added until the end. If recording
/// fails, the counters have the reason.
fn begin(directory: &[u8], min_size_bytes: u64) {
    POLICY.set_paused(true);
    set_reason("nothing is elided for now: it is recorded what is copied");
    session::begin(directory, usize::try_from(min_size_bytes).unwrap_or(usize::MAX));
    session::set_costs(&POLICY.costs.snapshot());
    if !uncopy_record::is_on() {
        POLICY.set_paused(false);
    }
}

fn end() {
    session::end();
    POLICY.set_paused(false);
    set_reason("");
}

/// Sets the reason in the counters for a temporary state.
fn set_reason(reason: &str) {
    if STATE.phase() == Phase::Active {
        counters::set_reason(reason);
    }
}
