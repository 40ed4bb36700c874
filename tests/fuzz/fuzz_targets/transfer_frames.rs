//! Frames of a transfer, on any bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    pb_transfer::fuzz_frames(data);
});
