//! What a compute capability has, and which of two kernels is taken.

use crate::error::KernelError;
use crate::ops::PrefillBy;
use crate::source::SM_90A;

/// The variable that names the kernel of prefill, as tables do: `prefill` or `prefill_sm90`.
pub(super) const PREFILL_VARIABLE: &str = "PREFILLBENCH_PREFILL";

/// A compute capability as compilers name it. That of 9.0 has `wgmma`, which code for `sm_90`
/// alone may not use; for later ones there is no such instruction.
pub(super) fn architecture_of(major: i32, minor: i32) -> String {
    match (major, minor) {
        (9, 0) => SM_90A.to_owned(),
        _ => format!("sm_{major}{minor}"),
    }
}

/// The kernel of prefill: the one that is `wanted`, or the fastest of the architecture.
///
/// # Errors
/// [`KernelError::Device`] when it is unknown, or another architecture's.
pub(super) fn prefill_by(
    architecture: &str,
    wanted: Option<&str>,
) -> Result<PrefillBy, KernelError> {
    let has_wgmma = architecture == SM_90A;
    let refused = |name: &str, problem: String| KernelError::Device {
        call: format!("{PREFILL_VARIABLE}={name}"),
        problem,
    };
    match wanted {
        None if has_wgmma => Ok(PrefillBy::Wgmma),
        None => Ok(PrefillBy::Mma),
        Some(name) => match PrefillBy::named(name) {
            Some(PrefillBy::Wgmma) if !has_wgmma => {
                Err(refused(name, format!("{architecture} has no wgmma")))
            }
            Some(by) => Ok(by),
            None => Err(refused(name, "must be prefill or prefill_sm90".to_owned())),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::{architecture_of, prefill_by};
    use crate::ops::PrefillBy::{Mma, Wgmma};

    #[test]
    fn wgmma_is_for_9_0_alone_and_gives_way_when_asked_to() {
        let of = architecture_of;
        assert_eq!(
            [of(8, 0), of(9, 0), of(10, 0), of(12, 1)],
            ["sm_80", "sm_90a", "sm_100", "sm_121"]
        );
        for (architecture, wanted, by) in [
            ("sm_80", None, Mma),
            ("sm_90a", None, Wgmma),
            ("sm_100", None, Mma),
            ("sm_90a", Some("prefill"), Mma),
            ("sm_90a", Some("prefill_sm90"), Wgmma),
            ("sm_100", Some("prefill"), Mma),
        ] {
            assert_eq!(prefill_by(architecture, wanted).unwrap(), by);
        }
        let refused = |architecture, name| {
            prefill_by(architecture, Some(name))
                .unwrap_err()
                .to_string()
        };
        assert!(refused("sm_100", "prefill_sm90").contains("sm_100 has no wgmma"));
        assert!(refused("sm_90a", "mma").contains("PREFILLBENCH_PREFILL=mma: must be"));
    }
}
