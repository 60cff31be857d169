#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| idemp_fuzz::records(bytes));
