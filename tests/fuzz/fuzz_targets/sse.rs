//! The event-stream parser against its oracle, on any bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pb_load::fuzz_sse(data));
