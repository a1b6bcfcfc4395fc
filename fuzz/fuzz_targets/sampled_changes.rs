#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| uncopy_attach::oracles::changed_image(data));
