//! Numbers as people read them, in one place so that every table and axis agrees.
//!
//! An absent value is a dash. It is never 0, because 0 ms would be a measurement.

use pb_record::visible;

/// What stands for an absent value.
pub(crate) const ABSENT: &str = "–";

/// Three significant digits without an exponent, for example `0.0123`, `4.56`, `789`, `12345`.
pub(crate) fn significant(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    if !value.is_finite() {
        return if value.is_nan() { ABSENT } else { "∞" }.to_owned();
    }
    let magnitude = value.abs().log10().floor() as i32;
    let decimals = (2 - magnitude).clamp(0, 9) as usize;
    let text = format!("{value:.decimals$}");
    // Rounding may have carried into a further digit (9.999 -> 10.00): drop the surplus decimal.
    let carried = text
        .parse::<f64>()
        .map_or(magnitude, |v| v.abs().log10().floor() as i32);
    if carried > magnitude && decimals > 0 {
        let decimals = decimals - 1;
        return format!("{value:.decimals$}");
    }
    text
}

/// Nanoseconds in milliseconds, three significant digits, without the unit.
pub(crate) fn ms(ns: f64) -> String {
    significant(ns / 1e6)
}

/// As [`ms`]; a dash when absent.
pub(crate) fn ms_or_dash(ns: Option<u64>) -> String {
    ns.map_or_else(|| ABSENT.to_owned(), |ns| ms(ns as f64))
}

/// Nanoseconds with the unit that suits them.
pub(crate) fn duration(ns: f64) -> String {
    let size = ns.abs();
    let (scale, unit) = match size {
        s if s < 1e3 => (1.0, "ns"),
        s if s < 1e6 => (1e3, "us"),
        s if s < 1e9 => (1e6, "ms"),
        _ => (1e9, "s"),
    };
    format!("{} {unit}", significant(ns / scale))
}

/// A share of 1 in percent, with one decimal, without the sign.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.1}", share * 100.0)
}

/// As [`percent`]; a dash when absent.
pub(crate) fn percent_or_dash(share: Option<f64>) -> String {
    share.map_or_else(|| ABSENT.to_owned(), percent)
}

/// A ratio as a signed change in percent, for example `-88.1 %`.
pub(crate) fn change(ratio: f64) -> String {
    let percent = (ratio - 1.0) * 100.0;
    if percent >= 1000.0 {
        return format!("x{}", significant(ratio));
    }
    format!("{percent:+.1} %")
}

/// A ratio as a signed change in percent without the sign of percent, for example `-88.1`; from
/// 100 on without decimals, for example `+1003`.
pub(crate) fn percent_change(ratio: f64) -> String {
    let percent = (ratio - 1.0) * 100.0;
    if percent.abs() < 99.95 {
        format!("{percent:+.1}")
    } else {
        format!("{percent:+.0}")
    }
}

/// A count; a dash when absent.
pub(crate) fn count_or_dash(count: Option<u64>) -> String {
    count.map_or_else(|| ABSENT.to_owned(), |n| n.to_string())
}

/// A value in the unit of a metric: nanoseconds become milliseconds, shares become percent.
pub(crate) fn in_unit(value: f64, unit: &str) -> String {
    match unit {
        "ns" => format!("{} ms", ms(value)),
        "share" => format!("{} %", percent(value)),
        _ => format!("{} {unit}", significant(value)),
    }
}

/// Text made harmless inside HTML and SVG, in element content and quoted attributes alike. Control
/// characters, which XML does not allow, and bidirectional overrides are shown by their codes.
pub(crate) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in visible(text).chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_whatever_the_size() {
        let pairs = [
            (0.012_345, "0.0123"),
            (4.555, "4.55"),
            (9.999, "10.0"),
            (99.96, "100"),
            (789.4, "789"),
            (12_345.6, "12346"),
            (-0.5, "-0.500"),
            (0.0, "0"),
        ];
        for (value, text) in pairs {
            assert_eq!(significant(value), text);
        }
        assert_eq!(significant(f64::INFINITY), "∞");
    }

    #[test]
    fn units_and_absence() {
        assert_eq!(ms_or_dash(Some(12_345_678)), "12.3");
        assert_eq!(ms_or_dash(None), ABSENT);
        assert_eq!(duration(1_500.0), "1.50 us");
        assert_eq!(change(0.119), "-88.1 %");
        assert_eq!(change(25.0), "x25.0");
        let changes = [0.119, 1.042, 1.9996, 11.034].map(percent_change);
        assert_eq!(changes, ["-88.1", "+4.2", "+100", "+1003"]);
        assert_eq!(in_unit(0.256, "share"), "25.6 %");
    }

    #[test]
    fn markup_is_defused() {
        assert_eq!(
            escape("<b a='1'>&\"\u{0}"),
            r"&lt;b a=&#39;1&#39;&gt;&amp;&quot;\u{0}"
        );
    }
}
