#![no_main]
use uncopy_netd::icmp::{Meaning, parse};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Some(Meaning::Echo(reply)) = parse(data, |_| true) {
        assert!(reply.len() <= data.len());
    }
});
