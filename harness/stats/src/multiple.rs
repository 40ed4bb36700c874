//! Holm's step-down adjustment: twelve metrics in one report are twelve chances to be fooled.

use crate::error::{StatError, check_open_unit};

/// Holm-adjusted p-values, in the order given. A value outside `[0, 1]` is an error.
pub fn holm_adjust(p_values: &[f64]) -> Result<Vec<f64>, StatError> {
    if let Some(&value) = p_values.iter().find(|p| !(0.0..=1.0).contains(*p)) {
        return Err(StatError::BadParameter { name: "p", value });
    }
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    // Ties keep their input order, and get the same adjusted value anyway.
    order.sort_by(|&i, &j| p_values[i].total_cmp(&p_values[j]));
    let mut adjusted = vec![0.0; p_values.len()];
    let mut largest = 0.0_f64;
    for (step, &index) in order.iter().enumerate() {
        let remaining = (p_values.len() - step) as f64;
        largest = largest.max((p_values[index] * remaining).min(1.0));
        adjusted[index] = largest;
    }
    Ok(adjusted)
}

/// Which hypotheses Holm's procedure rejects at family-wise level `alpha`, in the order given.
pub fn holm(p_values: &[f64], alpha: f64) -> Result<Vec<bool>, StatError> {
    check_open_unit("alpha", alpha)?;
    Ok(holm_adjust(p_values)?
        .into_iter()
        .map(|p| p <= alpha)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::close;

    #[test]
    fn hand_worked_adjustment() {
        // Sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1 = 0.02, 0.03, 0.06, 0.04 -> 0.06.
        let adjusted = holm_adjust(&[0.01, 0.04, 0.03, 0.005]).unwrap();
        for (got, want) in adjusted.iter().zip([0.03, 0.06, 0.06, 0.02]) {
            close(*got, want, 1e-14, 0.0);
        }
        assert_eq!(
            holm(&[0.01, 0.04, 0.03, 0.005], 0.05),
            Ok(vec![true, false, false, true])
        );
    }

    #[test]
    fn a_stop_protects_later_hypotheses() {
        // 0.03 fails at step one (0.03 > 0.05/2), so 0.04 must not pass at 0.05/1.
        assert_eq!(holm(&[0.03, 0.04], 0.05), Ok(vec![false, false]));
    }

    #[test]
    fn ends() {
        assert_eq!(holm_adjust(&[]), Ok(vec![]));
        assert_eq!(holm_adjust(&[0.9, 0.8]), Ok(vec![1.0, 1.0]));
        assert!(holm_adjust(&[f64::NAN]).is_err() && holm_adjust(&[1.5]).is_err());
        assert!(holm(&[0.1], 0.0).is_err());
    }
}
