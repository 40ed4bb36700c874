//! Arbitrary bytes as a metrics page.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pb_target::fuzz_prometheus(data));
