//! Byte sizes and rates as people type them.

use std::str::FromStr;

/// A size in bytes, typed as `4096`, `512MiB` or `2GB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteSize(pub(crate) u64);

const UNITS: [(&str, u64); 10] = [
    ("b", 1),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("", 1),
];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        let problem = || format!("`{text}` is not a size: write it as 4096, 512MiB or 2GB");
        let number: u64 = text[..digits].parse().map_err(|_| problem())?;
        let unit = text[digits..].trim().to_ascii_lowercase();
        let scale = UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(problem)?
            .1;
        let bytes = number.checked_mul(scale).ok_or_else(problem)?;
        if bytes == 0 {
            return Err(problem());
        }
        Ok(ByteSize(bytes))
    }
}

/// The speed of a link in bytes a second, typed as `12.5e9`, `100Gb/s` or `12.5GB/s`: as everywhere
/// in networks a small b is a bit, a large one a byte, and thousands are decimal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LinkRate(pub(crate) f64);

const RATES: [(&str, f64); 9] = [
    ("", 1.0),
    ("B/s", 1.0),
    ("MB/s", 1e6),
    ("GB/s", 1e9),
    ("Mb/s", 1e6 / 8.0),
    ("Gb/s", 1e9 / 8.0),
    ("Mbit/s", 1e6 / 8.0),
    ("Gbit/s", 1e9 / 8.0),
    ("Tb/s", 1e12 / 8.0),
];

impl FromStr for LinkRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let problem = || {
            format!(
                "`{text}` is not the speed of a link: write it as 12.5e9 (bytes a second), \
                     100Gb/s or 12.5GB/s"
            )
        };
        let known = RATES.iter().rev();
        let (unit, scale) = known
            .clone()
            .find(|(unit, _)| text.ends_with(unit))
            .ok_or_else(problem)?;
        let number = text[..text.len() - unit.len()].trim();
        let number: f64 = number.parse().map_err(|_| problem())?;
        let rate = number * scale;
        match rate.is_finite() && rate > 0.0 {
            true => Ok(LinkRate(rate)),
            false => Err(problem()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_told_in_bits_or_bytes() {
        for text in [
            "12.5e9",
            "100Gb/s",
            "100 Gbit/s",
            "12.5GB/s",
            "0.1Tb/s",
            "100000Mb/s",
        ] {
            assert_eq!(text.parse(), Ok(LinkRate(12.5e9)), "{text}");
        }
        for bad in [
            "", "0", "-1", "100Gb", "100gb/s", "fast", "1e999", "NaN", "Gb/s",
        ] {
            assert!(bad.parse::<LinkRate>().is_err(), "{bad}");
        }
    }

    #[test]
    fn units_are_decimal_and_binary() {
        assert_eq!("2GB".parse(), Ok(ByteSize(2_000_000_000)));
        assert_eq!("2 GiB".parse(), Ok(ByteSize(2_147_483_648)));
        assert_eq!("4096".parse(), Ok(ByteSize(4096)));
        for bad in ["", "0", "-1", "1.5GB", "3 furlongs", "99999999999999TiB"] {
            assert!(bad.parse::<ByteSize>().is_err(), "{bad}");
        }
    }
}
