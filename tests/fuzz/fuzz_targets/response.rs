//! The HTTP/1.1 response reader against another implementation, on any bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pb_load::fuzz_response(data));
