//! Values in the sentences of a gate.

/// A value in words: shares in percent, bytes in MiB, anything else with its unit.
pub fn amount(value: f64, unit: &str) -> String {
    match unit {
        _ if value.is_infinite() => "endless".to_owned(),
        "share" => format!("{} %", digits(100.0 * value)),
        "bytes" => format!("{} MiB", digits(value / (1_u64 << 20) as f64)),
        unit => format!("{} {unit}", digits(value)),
    }
}

/// Four digits or more where they carry something, and no trailing zeros.
fn digits(value: f64) -> String {
    let whole = value.abs().max(1.0).log10().floor() as usize;
    let text = format!("{value:.*}", 4_usize.saturating_sub(whole));
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_their_units() {
        assert_eq!(amount(0.9, "share"), "90 %");
        assert_eq!(amount(0.98765, "share"), "98.765 %");
        assert_eq!(amount(123.456_789, "ms"), "123.46 ms");
        assert_eq!(amount(500.0, "ms"), "500 ms");
        assert_eq!(amount(0.012_34, "1/s"), "0.0123 1/s");
        assert_eq!(amount(3.0 * 1024.0 * 1024.0, "bytes"), "3 MiB");
        assert_eq!(amount(f64::INFINITY, "ms"), "endless");
        assert_eq!(amount(1_234_567.0, "1/s"), "1234567 1/s");
    }
}
