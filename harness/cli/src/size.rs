//! Byte sizes as people type them.

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

#[cfg(test)]
mod tests {
    use super::*;

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
