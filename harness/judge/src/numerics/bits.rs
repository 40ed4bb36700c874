//! T0: bitwise equality. A batch-invariant engine must pass it, and then no statistics are needed.

use serde::{Deserialize, Serialize};

use super::words::{apart, grouped};
use super::{Logit, NumericsError};
use crate::verdict::Verdict;

/// Where two computations first differ, and by what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BitLocus {
    /// The prompt.
    pub prompt: String,
    /// Position within the prompt.
    pub position: u32,
    /// Vocabulary index.
    pub column: u32,
    /// The monolithic value.
    #[serde(with = "crate::real")]
    pub expected: f64,
    /// The variant's value.
    #[serde(with = "crate::real")]
    pub got: f64,
}

/// Running count of bitwise differences between a monolithic pass and a variant.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BitDifference {
    /// Rows compared.
    pub rows: u64,
    /// Values compared.
    pub values: u64,
    /// Rows with at least one difference.
    pub differing_rows: u64,
    /// Values that differ in any bit; +0 and -0 differ.
    pub differing_values: u64,
    /// Largest `|variant - monolithic|` among them, in logits; infinite if either is not finite.
    #[serde(with = "crate::real")]
    pub max_abs: f64,
    /// The first difference in the order given.
    pub first: Option<BitLocus>,
}

impl BitDifference {
    /// Nothing compared yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Compares one row of logits `[vocabulary]`. Errors when the widths differ.
    pub fn push_row<L: Logit>(
        &mut self,
        prompt: &str,
        position: u32,
        expected: &[L],
        got: &[L],
    ) -> Result<(), NumericsError> {
        if expected.len() != got.len() {
            let (expected, got) = (expected.len(), got.len());
            return Err(NumericsError::WidthMismatch { expected, got });
        }
        let before = self.differing_values;
        for (column, (e, g)) in expected.iter().zip(got).enumerate() {
            if e.bits() == g.bits() {
                continue;
            }
            self.differing_values += 1;
            let (expected, got) = (e.real(), g.real());
            let distance = (got - expected).abs();
            self.max_abs = self.max_abs.max(if distance.is_finite() {
                distance
            } else {
                f64::INFINITY
            });
            if self.first.is_none() {
                let (prompt, column) = (prompt.to_owned(), column as u32);
                self.first = Some(BitLocus {
                    prompt,
                    position,
                    column,
                    expected,
                    got,
                });
            }
        }
        self.rows += 1;
        self.values += expected.len() as u64;
        self.differing_rows += u64::from(self.differing_values > before);
        Ok(())
    }

    /// Whether values were compared and all are equal.
    pub fn is_equal(&self) -> bool {
        self.values > 0 && self.differing_values == 0
    }

    /// T0's verdict. Comparing nothing is inconclusive, not equal.
    pub fn verdict(&self) -> Verdict {
        match &self.first {
            // A file that was read may contradict itself.
            None if self.differing_values > 0 || self.differing_rows > 0 => {
                let reason = format!(
                    "{} of {} values differ, and the first of them is not named",
                    grouped(self.differing_values),
                    grouped(self.values)
                );
                Verdict::from_findings(vec![reason], vec![])
            }
            None if self.values == 0 => {
                Verdict::from_findings(vec![], vec!["no logits were compared".to_owned()])
            }
            None => Verdict::Pass,
            Some(at) => {
                let (got, expected) = apart(at.got, at.expected);
                let reason = format!(
                    "{} of {} values differ, first at prompt {} position {}: {got} against \
                     {expected}",
                    grouped(self.differing_values),
                    grouped(self.values),
                    at.prompt,
                    at.position,
                );
                Verdict::from_findings(vec![reason], vec![])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_locates_differences() {
        let mut bits = BitDifference::new();
        assert_eq!(bits.verdict().exit_code(), 3);
        bits.push_row("a", 0, &[1.0_f32, 2.0, f32::NAN], &[1.0, 2.0, f32::NAN])
            .unwrap();
        assert!(bits.is_equal() && bits.verdict().is_pass());
        bits.push_row("a", 1, &[1.0_f32, 2.0, 0.0], &[1.0, 2.5, -0.0])
            .unwrap();
        bits.push_row("b", 0, &[1.0_f32, 2.0, 3.0], &[1.25, 2.0, 3.0])
            .unwrap();
        assert_eq!((bits.rows, bits.values), (3, 9));
        assert_eq!(
            (bits.differing_rows, bits.differing_values, bits.max_abs),
            (2, 3, 0.5)
        );
        let first = bits.first.clone().unwrap();
        assert_eq!(
            (first.prompt.as_str(), first.position, first.column),
            ("a", 1, 1)
        );
        assert_eq!((first.expected, first.got), (2.0, 2.5));
        let reason = "3 of 9 values differ, first at prompt a position 1: 2.5000 against 2.0000";
        let reasons = vec![reason.to_owned()];
        assert_eq!(bits.verdict(), Verdict::Fail { reasons });
    }

    #[test]
    fn one_ulp_is_a_difference_and_nan_is_infinitely_far() {
        let mut bits = BitDifference::new();
        let next = f64::from_bits(1.0_f64.to_bits() + 1);
        bits.push_row("a", 0, &[1.0_f64], &[next]).unwrap();
        assert_eq!((bits.differing_values, bits.max_abs), (1, f64::EPSILON));
        bits.push_row("a", 1, &[1.0_f64], &[f64::NAN]).unwrap();
        assert_eq!(bits.max_abs, f64::INFINITY);
        assert!(bits.push_row("a", 2, &[1.0_f64], &[1.0, 2.0]).is_err());
    }
}
