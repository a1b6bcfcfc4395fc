#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| uncopy_lanes::oracles::message_words(data));
