#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| shuntyard_sim::fuzz::plan(bytes));
