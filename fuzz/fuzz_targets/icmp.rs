#![no_main]
use uncopy_netd::icmp::{IcmpEffect, parse};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Some(IcmpEffect::EchoReply(reply)) = parse(data, |_| true) {
        assert!(reply.len() <= data.len());
    }
});
