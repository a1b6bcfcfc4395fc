#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| uncopy_tcp::oracles::connection(data));
